#include "prefetcher/service/recorder.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <variant>

#include "prefetcher/core/codec.h"
#include "proto/sha256.h"
#include "proto/unique_fd.h"

namespace foreload::service {
namespace {

constexpr std::size_t kSaltBytesMax = 4096;

Result<std::string> ReadSalt(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return Status::FromErrno(errno, "record.salt_file " + path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "record.salt_file " + path);
  if ((info.st_mode & 077) != 0) {
    return InvalidArgument("record.salt_file " + path + " can be read by others: chmod 600");
  }
  std::string salt(kSaltBytesMax, '\0');
  const ssize_t bytes = read(fd.get(), salt.data(), salt.size());
  if (bytes < static_cast<ssize_t>(kSaltBytesMin)) {
    return InvalidArgument("record.salt_file " + path + " must hold at least 32 random bytes: head -c 32 /dev/urandom");
  }
  salt.resize(static_cast<std::size_t>(bytes));
  return salt;
}

std::uint64_t First8(const std::string& text) {
  const Sha256Digest digest = Sha256(text.data(), text.size());
  std::uint64_t word = 0;
  std::memcpy(&word, digest.data(), sizeof word);
  return word;
}

template <typename E>
concept NamesBlock = requires(const E& event) {
  event.block;
};
template <typename E>
concept NamesParent = requires(const E& event) {
  event.parent;
};

}  // namespace

Recorder::Recorder(std::unique_ptr<telemetry::TraceWriter> writer, std::string salt, std::uint64_t bytes_max,
                   const BlockInterner& interner)
    : writer_(std::move(writer)), salt_(std::move(salt)), bytes_max_(bytes_max), interner_(interner) {}

Result<std::unique_ptr<Recorder>> Recorder::Open(const ServiceConfig::Record& config,
                                                 const core::CoreConfig& core_config, const BlockInterner& interner) {
  FORELOAD_ASSIGN_OR_RETURN(std::string salt, ReadSalt(config.salt_file));
  trace::TraceHeader header;
  header.set_wall_time_seconds(static_cast<double>(WallNow()) / 1e9);
  const std::vector<std::uint8_t> encoded = core::EncodeConfig(core_config);
  header.set_config(encoded.data(), encoded.size());
  header.set_producer("foreload serve");
  const std::uint64_t salt_id = First8(salt);
  header.set_salt_id(&salt_id, sizeof salt_id);
  FORELOAD_ASSIGN_OR_RETURN(auto writer, telemetry::TraceWriter::Open({.path = config.file}, std::move(header)));
  return std::unique_ptr<Recorder>(new Recorder(std::move(writer), std::move(salt), config.max_bytes, interner));
}

void Recorder::Define(BlockId block) {
  if (!block.valid()) return;
  if (block.value >= defined_.size()) defined_.resize(block.value + 1);
  if (defined_[block.value]) return;
  const BlockKey* key = interner_.key(block);
  if (key == nullptr) return;  // provisional: defined once its key is known
  defined_[block.value] = true;
  std::string text = salt_;
  text.append(reinterpret_cast<const char*>(key), sizeof *key);
  trace::TraceRecord record;
  record.mutable_key()->set_block(block.value);
  record.mutable_key()->set_salted_hash(First8(text));
  writer_->Append(std::move(record));
}

void Recorder::Step(TimeNs now, const core::EventBatch& batch, std::span<const core::Command> commands) {
  if (full_) return;
  if (writer_->stats().bytes_written >= bytes_max_) {
    full_ = true;
    spdlog::warn("recording ended: record.max_bytes is reached");
    return;
  }
  for (const BlockId block : batch.blocks) Define(block);
  for (const core::Event& event : batch.events) {
    std::visit(
        [this](const auto& e) {
          using E = std::decay_t<decltype(e)>;
          if constexpr (NamesBlock<E>) Define(e.block);
          if constexpr (NamesParent<E>) Define(e.parent);
        },
        event);
  }
  trace::TraceRecord record;
  trace::Step& step = *record.mutable_step();
  step.set_now_delta_ns(now - last_now_);
  last_now_ = now;
  std::vector<std::uint8_t> encoded;
  core::EncodeBatch(batch, encoded);
  step.set_events(encoded.data(), encoded.size());
  step.set_event_count(static_cast<std::uint32_t>(batch.events.size()));
  step.set_command_digest(core::CommandDigest(commands));
  step.set_command_count(static_cast<std::uint32_t>(commands.size()));
  writer_->Append(std::move(record));
  for (const core::Command& command : commands) {
    const auto* forget = std::get_if<core::ForgetBlock>(&command);
    if (forget != nullptr && forget->block.value < defined_.size()) defined_[forget->block.value] = false;
  }
}

Status Recorder::Close() {
  return writer_->Close();
}

Result<ReplayCheck> CheckRecording(const std::string& path) {
  FORELOAD_ASSIGN_OR_RETURN(auto reader, telemetry::TraceReader::Open(path));
  std::unique_ptr<core::Core> core;
  ReplayCheck check;
  TimeNs now = 0;
  core::EventBatch batch;
  std::vector<core::Command> commands;
  while (true) {
    FORELOAD_ASSIGN_OR_RETURN(auto record, reader->Next());
    if (!record) break;
    if (record->has_header()) {
      const std::string& bytes = record->header().config();
      FORELOAD_ASSIGN_OR_RETURN(
          const core::CoreConfig config,
          core::DecodeConfig({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
      core = std::make_unique<core::Core>(config);
    }
    if (!record->has_step()) continue;
    if (core == nullptr) return DataLoss(path + ": a step before the header");
    const trace::Step& step = record->step();
    FORELOAD_RETURN_IF_ERROR(
        core::DecodeBatch({reinterpret_cast<const std::uint8_t*>(step.events().data()), step.events().size()}, batch));
    now += step.now_delta_ns();
    commands.clear();
    core->Step(now, batch, commands);
    ++check.steps;
    check.events += batch.events.size();
    if (core::CommandDigest(commands) != step.command_digest()) {
      if (check.differing_steps++ == 0) check.first_difference = check.steps;
    }
  }
  check.complete = reader->complete();
  return check;
}

}  // namespace foreload::service
