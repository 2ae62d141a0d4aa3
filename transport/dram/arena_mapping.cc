#include "transport/dram/arena_mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <string>

#include "base/units.h"

namespace foreload {
namespace {

constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kTouchStep = 4096;

void* TryMap(std::uint64_t bytes, int extra_flags) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

// Over-maps and trims, so that transparent huge pages can cover the arena from its first byte.
void* TryMapAligned(std::uint64_t bytes) {
  auto* raw = static_cast<std::uint8_t*>(TryMap(bytes + kHugePageBytes, MAP_NORESERVE));
  if (raw == nullptr) return nullptr;
  const std::uint64_t skip = (kHugePageBytes - reinterpret_cast<std::uintptr_t>(raw) % kHugePageBytes) % kHugePageBytes;
  if (skip > 0) ::munmap(raw, skip);
  if (skip < kHugePageBytes) ::munmap(raw + skip + bytes, kHugePageBytes - skip);
  return raw + skip;
}

bool TransparentHugePagesAllowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  std::getline(file, text);
  return text.find("[always]") != std::string::npos || text.find("[madvise]") != std::string::npos;
}

std::string PreferNode(void* base, std::uint64_t bytes, int node) {
  constexpr int kMpolPreferred = 1;
  constexpr int kNodesMax = 1024;
  if (node < 0 || node >= kNodesMax) return "NUMA node left to the kernel";
  std::array<unsigned long, kNodesMax / (8 * sizeof(unsigned long))> mask{};
  mask[static_cast<std::size_t>(node) / (8 * sizeof(unsigned long))] = 1UL << (node % (8 * sizeof(unsigned long)));
  if (::syscall(SYS_mbind, base, bytes, kMpolPreferred, mask.data(), kNodesMax, 0) == 0)
    return "prefers NUMA node " + std::to_string(node);
  return "NUMA node " + std::to_string(node) + " refused: " + Status::FromErrno(errno, "mbind").message();
}

Status Touch(std::uint8_t* base, std::uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return OkStatus();
  if (errno != EINVAL) return Status::FromErrno(errno, "touching the DRAM arena");
#endif
  for (std::uint64_t i = 0; i < bytes; i += kTouchStep) *reinterpret_cast<volatile std::uint8_t*>(base + i) = 0;
  return OkStatus();
}

}  // namespace

Result<ArenaMapping> MapArena(const ArenaMappingOptions& options) {
  ArenaMapping mapping;
  std::string pages = "4 KiB pages (huge pages off)";
  void* base = nullptr;
  if (options.huge_pages) {
    const std::uint64_t rounded = AlignUp(options.bytes, kHugePageBytes);
    base = TryMap(rounded, MAP_HUGETLB);
    mapping.bytes = rounded;
    pages = "2 MiB pages from the reserved pool";
  }
  if (base == nullptr) {
    base = options.huge_pages ? TryMapAligned(options.bytes) : TryMap(options.bytes, MAP_NORESERVE);
    mapping.bytes = options.bytes;
    if (base == nullptr) return Status::FromErrno(errno, "mapping the DRAM arena");
    if (options.huge_pages) {
      const bool advised = ::madvise(base, options.bytes, MADV_HUGEPAGE) == 0 && TransparentHugePagesAllowed();
      pages = advised ? "transparent huge pages (none reserved)"
                      : "4 KiB pages (none reserved, transparent_hugepage is never)";
    }
  }
  mapping.base = static_cast<std::uint8_t*>(base);
  const std::string node = PreferNode(base, mapping.bytes, options.numa_node);
  const Status touched = Touch(mapping.base, mapping.bytes);
  if (!touched.ok()) {
    UnmapArena(mapping);
    return touched;
  }
  std::string lock = "not locked (configured)";
  if (options.lock_memory) {
    lock = "locked";
    if (::mlock(base, mapping.bytes) != 0)
      lock = "not locked: " + Status::FromErrno(errno, "mlock").message() + " (raise LimitMEMLOCK= or ulimit -l)";
  }
  mapping.summary = pages + "; " + lock + "; " + node;
  return mapping;
}

void UnmapArena(const ArenaMapping& mapping) {
  if (mapping.base != nullptr) ::munmap(mapping.base, mapping.bytes);
}

}  // namespace foreload
