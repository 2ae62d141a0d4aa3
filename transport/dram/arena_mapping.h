// Anonymous memory with the page size, placement and residency that the machine allows, and words for what it did not.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace foreload {

struct ArenaMappingOptions {
  std::uint64_t bytes = 0;  // a multiple of 4 KiB
  bool huge_pages = true;
  bool lock_memory = true;
  int numa_node = -1;
};

struct ArenaMapping {
  std::uint8_t* base = nullptr;
  std::uint64_t bytes = 0;  // to unmap; may exceed what was asked for
  std::string summary;
};

// Every page is touched before it returns: a machine without the memory says so now, not in the middle of a load.
Result<ArenaMapping> MapArena(const ArenaMappingOptions& options);
void UnmapArena(const ArenaMapping& mapping);

}  // namespace foreload
