#include "transport/uring/uring_backend.h"

#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "base/check.h"
#include "transport/file_io.h"
#include "transport/uring/fixed_tables.h"

namespace foreload {
namespace {

constexpr std::uint32_t kTransientRetriesMax = 64;  // EAGAIN and EINTR of one transfer before it is an error

Status RefusalOf(int errnum) {
  switch (errnum) {
    case ENOSYS: return Unimplemented("io_uring: this kernel (or sandbox) has no such system call");
    case EPERM:
    case EACCES:
      return FailedPrecondition(
          "io_uring: forbidden here, by seccomp or kernel.io_uring_disabled (see `foreload probe`)");
    default: return Status::FromErrno(errnum, "io_uring_setup");
  }
}

class UringBackendImpl final : public UringBackend {
 public:
  explicit UringBackendImpl(std::uint32_t depth)
      : regions_({.file_to_memory = true, .memory_to_file = true}), operations_(depth) {
    for (std::uint32_t i = depth; i > 0; --i) free_.push_back(i - 1);
  }
  ~UringBackendImpl() override {
    FORELOAD_CHECK(free_.size() == operations_.size(), "poll until nothing is outstanding before destroying");
    if (ready_) io_uring_queue_exit(&ring_);
  }

  Status Start(const UringBackendOptions& options);

  Status Probe() override { return OkStatus(); }
  Capabilities capabilities() const override;
  Result<RegionId> Register(const Region& region) override;
  Status Unregister(RegionId region) override;
  std::size_t Submit(std::span<const Transfer> transfers) override;
  std::size_t Poll(std::span<Completion> completions) override;
  UringRegistration registration() const override { return tables_->registration(); }

 private:
  struct Operation {
    Transfer transfer;
    TransferEnd source;
    TransferEnd destination;
    std::uint64_t done = 0;
    std::uint32_t retries = 0;
    bool refused = false;

    bool reading() const { return source.kind == Region::Kind::kFile; }
    const TransferEnd& file() const { return reading() ? source : destination; }
    const TransferEnd& memory() const { return reading() ? destination : source; }
  };

  void Enqueue(std::uint32_t index);
  void Flush();
  bool Advance(Operation& operation, int result, Completion& completion);

  io_uring ring_{};
  bool ready_ = false;
  std::unique_ptr<FixedTables> tables_;
  RegionTable regions_;
  std::vector<Operation> operations_;  // by user_data
  std::vector<std::uint32_t> free_;
};

Status UringBackendImpl::Start(const UringBackendOptions& options) {
  io_uring_params params{};
  const int result = io_uring_queue_init_params(options.queue_depth, &ring_, &params);
  if (result < 0) return RefusalOf(-result);
  ready_ = true;
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return Unimplemented("io_uring: this kernel cannot say what it supports (older than 5.6)");
  for (const int operation : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED}) {
    if (io_uring_opcode_supported(probe, operation)) continue;
    io_uring_free_probe(probe);
    return Unimplemented("io_uring: this kernel lacks operation " + std::to_string(operation));
  }
  io_uring_free_probe(probe);
  tables_ = std::make_unique<FixedTables>(ring_, options.registered_buffers, options.registered_files);
  return OkStatus();
}

Capabilities UringBackendImpl::capabilities() const {
  Capabilities capabilities;
  capabilities.name = "uring";
  capabilities.file_to_memory = true;
  capabilities.memory_to_file = true;
  capabilities.queue_depth = static_cast<std::uint32_t>(operations_.size());
  capabilities.transfer_bytes_max = UINT64_MAX;
  capabilities.alignment = kDirectAlignment;
  capabilities.poll_fd = ring_.ring_fd;
  return capabilities;
}

Result<RegionId> UringBackendImpl::Register(const Region& region) {
  FORELOAD_ASSIGN_OR_RETURN(const RegionId id, regions_.Add(region));
  tables_->AddRegion(RegionTable::SlotOf(id), region);
  return id;
}

Status UringBackendImpl::Unregister(RegionId id) {
  FORELOAD_ASSIGN_OR_RETURN(const Region region, regions_.BeginRemove(id));
  tables_->RemoveRegion(RegionTable::SlotOf(id), region);
  regions_.FinishRemove(id);
  return OkStatus();
}

std::size_t UringBackendImpl::Submit(std::span<const Transfer> transfers) {
  std::size_t accepted = 0;
  for (; accepted < transfers.size() && !free_.empty(); ++accepted) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Operation& operation = operations_[index];
    operation = {};
    operation.transfer = transfers[accepted];
    operation.refused = !regions_.Acquire(operation.transfer, operation.source, operation.destination);
    Enqueue(index);
  }
  if (accepted > 0) Flush();
  return accepted;
}

// One operation for the next run of bytes that lies in one piece and fits one call.
void UringBackendImpl::Enqueue(std::uint32_t index) {
  const Operation& operation = operations_[index];
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  // The ring has as many entries as there are operations, and each has at most one entry waiting.
  FORELOAD_CHECK(sqe != nullptr, "a submission entry for every operation");
  if (operation.refused) {
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, index);
    return;
  }
  const TransferEnd& file = operation.file();
  const TransferEnd& memory = operation.memory();
  const std::uint64_t memory_offset = memory.offset + operation.done;
  const std::uint64_t piece_left = kBufferPieceBytes - memory_offset % kBufferPieceBytes;
  const std::uint64_t left = operation.transfer.bytes - operation.done;
  const auto bytes = static_cast<unsigned>(std::min({left, kIoBytesMax, piece_left}));
  std::uint8_t* const address = memory.memory + operation.done;
  const std::uint64_t offset = file.offset + operation.done;
  const int fixed_file = tables_->FileAt(file.slot);
  const int fd = fixed_file >= 0 ? fixed_file : file.fd;
  const int buffer = tables_->BufferAt(memory.slot, memory_offset);
  if (operation.reading()) {
    buffer >= 0 ? io_uring_prep_read_fixed(sqe, fd, address, bytes, offset, buffer)
                : io_uring_prep_read(sqe, fd, address, bytes, offset);
  } else {
    buffer >= 0 ? io_uring_prep_write_fixed(sqe, fd, address, bytes, offset, buffer)
                : io_uring_prep_write(sqe, fd, address, bytes, offset);
  }
  if (fixed_file >= 0) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, index);
}

// What the kernel does not take now (EAGAIN, EBUSY) stays in the ring and goes with the next call.
void UringBackendImpl::Flush() {
  while (io_uring_sq_ready(&ring_) > 0) {
    if (io_uring_submit(&ring_) <= 0) return;
  }
}

std::size_t UringBackendImpl::Poll(std::span<Completion> completions) {
  constexpr std::size_t kBatch = 64;
  std::array<io_uring_cqe*, kBatch> batch;
  std::size_t count = 0;
  bool drained = false;
  while (!drained && count < completions.size()) {
    const auto want = static_cast<unsigned>(std::min(kBatch, completions.size() - count));
    const unsigned got = io_uring_peek_batch_cqe(&ring_, batch.data(), want);
    for (unsigned i = 0; i < got; ++i) {
      const auto index = static_cast<std::uint32_t>(batch[i]->user_data);
      if (Advance(operations_[index], batch[i]->res, completions[count])) {
        ++count;
        free_.push_back(index);
      } else {
        Enqueue(index);
      }
    }
    io_uring_cq_advance(&ring_, got);
    drained = got < want;
  }
  Flush();
  return count;
}

// True when the transfer has ended, and `completion` says how; false when it needs another operation.
bool UringBackendImpl::Advance(Operation& operation, int result, Completion& completion) {
  completion = {.token = operation.transfer.token, .bytes = 0, .error = TransferError::kBadRegion, .errnum = 0};
  if (operation.refused) return true;
  completion.error = TransferError::kNone;
  if (result == -EAGAIN || result == -EINTR) {
    if (++operation.retries <= kTransientRetriesMax) return false;
  }
  if (result < 0) {
    completion.error = ErrorFromErrno(-result);
    completion.errnum = -result;
  } else {
    const auto moved = static_cast<std::uint64_t>(result);
    operation.done += moved;
    const bool at_end = moved == 0 || EndsInsideBlock(operation.file().direct, moved);
    if (operation.done < operation.transfer.bytes) {
      if (!at_end) return false;
      completion.error = TransferError::kShort;
    }
  }
  completion.bytes = operation.done;
  regions_.Release(operation.transfer);
  return true;
}

}  // namespace

Result<std::unique_ptr<UringBackend>> UringBackend::Create(const UringBackendOptions& options) {
  if (options.queue_depth == 0 || options.queue_depth > kUringDepthMax)
    return InvalidArgument("io_uring queue depth must lie in 1.." + std::to_string(kUringDepthMax));
  auto backend = std::make_unique<UringBackendImpl>(options.queue_depth);
  FORELOAD_RETURN_IF_ERROR(backend->Start(options));
  return std::unique_ptr<UringBackend>(std::move(backend));
}

}  // namespace foreload
