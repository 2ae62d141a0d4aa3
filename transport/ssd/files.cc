#include "transport/ssd/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace foreload::ssd {
namespace {

class PosixFiles final : public SegmentFiles {
 public:
  explicit PosixFiles(DirectIo direct_io) : direct_io_(direct_io) {}

  Result<OpenedFile> Create(const std::string& path, std::uint64_t bytes) override {
    FORELOAD_ASSIGN_OR_RETURN(OpenedFile file, OpenWith(path, O_CREAT | O_EXCL));
    const int error = ::posix_fallocate(file.fd.get(), 0, static_cast<off_t>(bytes));
    if (error != 0) {
      ::unlink(path.c_str());
      return Status::FromErrno(error, "allocate " + path);
    }
    file.bytes = bytes;
    return file;
  }

  Result<OpenedFile> Open(const std::string& path) override {
    FORELOAD_ASSIGN_OR_RETURN(OpenedFile file, OpenWith(path, 0));
    struct stat info {};
    if (::fstat(file.fd.get(), &info) != 0) return Status::FromErrno(errno, "stat " + path);
    if (!S_ISREG(info.st_mode)) return FailedPrecondition(path + " is not a regular file");
    file.bytes = static_cast<std::uint64_t>(info.st_size);
    return file;
  }

  Status Read(int fd, std::uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Status::FromErrno(errno, "read segment");
      if (n == 0) return IoError("segment file ends early");
      offset += static_cast<std::uint64_t>(n);
      out = out.subspan(static_cast<std::size_t>(n));
    }
    return OkStatus();
  }

  Status Write(int fd, std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return Status::FromErrno(n < 0 ? errno : EIO, "write segment");
      offset += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return OkStatus();
  }

  Status Sync(int fd) override {
    if (::fdatasync(fd) != 0) return Status::FromErrno(errno, "fdatasync segment");
    return OkStatus();
  }

  Status SyncAndForget(int fd) override {
    FORELOAD_RETURN_IF_ERROR(Sync(fd));
    const int error = ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return error == 0 ? OkStatus() : Status::FromErrno(error, "fadvise segment");
  }

  Status Truncate(int fd, std::uint64_t bytes) override {
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return Status::FromErrno(errno, "truncate segment");
    return OkStatus();
  }

  Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return Status::FromErrno(errno, "remove " + path);
    return OkStatus();
  }

  Status SyncDirectory(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) return Status::FromErrno(errno, "fsync " + path);
    return OkStatus();
  }

 private:
  Result<OpenedFile> OpenWith(const std::string& path, int flags) {
    constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    if (direct_io_ != DirectIo::kOff) {
      OpenedFile file{UniqueFd(::open(path.c_str(), kFlags | flags | O_DIRECT, 0600)), 0, true};
      if (file.fd.valid()) return file;
      if (errno != EINVAL || direct_io_ == DirectIo::kOn)
        return Status::FromErrno(errno, "open " + path + " (O_DIRECT)");
      ::unlink((flags & O_CREAT) != 0 ? path.c_str() : "");  // some file systems create the file before they refuse
    }
    OpenedFile file{UniqueFd(::open(path.c_str(), kFlags | flags, 0600)), 0, false};
    if (!file.fd.valid()) return Status::FromErrno(errno, "open " + path);
    return file;
  }

  const DirectIo direct_io_;
};

}  // namespace

std::unique_ptr<SegmentFiles> NewSegmentFiles(DirectIo direct_io) {
  return std::make_unique<PosixFiles>(direct_io);
}

}  // namespace foreload::ssd
