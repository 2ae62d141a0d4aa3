// What a health endpoint says: whether, and which checks it rests on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace foreload::service {

struct Health {
  bool ok = true;
  std::vector<std::pair<std::string, std::string>> checks;  // name, state in words
};

}  // namespace foreload::service
