#include "residency/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace foreload {

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  Unmap();
}

void SharedMemory::Unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

Result<SharedMemory> SharedMemory::Create(const char* name, std::uint64_t bytes) {
  if (bytes == 0) return InvalidArgument("shared memory of no bytes");
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Status::FromErrno(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Status::FromErrno(errno, "shared memory of " + std::to_string(bytes) + " bytes");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status::FromErrno(errno, "sealing shared memory");
  }
  return Map(std::move(fd), bytes);
}

Result<SharedMemory> SharedMemory::Adopt(UniqueFd fd, std::uint64_t bytes_min) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument("shared memory must be a memfd sealed with F_SEAL_SHRINK");
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return Status::FromErrno(errno, "shared memory: fstat");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes == 0 || bytes < bytes_min) {
    return InvalidArgument("shared memory has " + std::to_string(bytes) + " bytes, " + std::to_string(bytes_min) +
                           " are needed");
  }
  return Map(std::move(fd), bytes);
}

Result<SharedMemory> SharedMemory::Map(UniqueFd fd, std::uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED)
    return Status::FromErrno(errno, "mapping " + std::to_string(bytes) + " bytes of shared memory");
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

}  // namespace foreload
