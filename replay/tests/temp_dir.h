// A folder of its own for a test, removed at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/check.h"

namespace foreload::replay {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "foreload-replay-XXXXXX").string();
    FORELOAD_CHECK(mkdtemp(pattern.data()) != nullptr, "cannot make a temporary folder");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// FORELOAD_DATA, else the folder beside the sources; "" when `name` is not there.
inline std::string DataFile(const std::string& name) {
  const char* root = getenv("FORELOAD_DATA");
  const std::string file = (root != nullptr ? std::string(root) : FORELOAD_SOURCE_DIR "/../shared/data") + "/" + name;
  return std::filesystem::exists(file) ? file : "";
}

}  // namespace foreload::replay
