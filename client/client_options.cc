#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "client/client.h"
#include "proto/limits.h"

namespace foreload::client {
namespace {

Status CheckExtents(const fl_options& options) {
  if (options.worker && options.extent_count == 0) return InvalidArgument("extents: a worker names at least one");
  if (options.extent_count > kLayerGroupsMax) return InvalidArgument("extents: at most 64");
  if (options.extent_count > 0 && options.extents == nullptr) return InvalidArgument("extents is NULL");
  std::uint64_t groups = 0;
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < options.extent_count; ++i) {
    const fl_extent& extent = options.extents[i];
    if (extent.layer_group >= kLayerGroupsMax) return InvalidArgument("extents: layer_group must be under 64");
    const std::uint64_t group = std::uint64_t{1} << extent.layer_group;
    if (groups & group) return InvalidArgument("extents: a layer group appears twice");
    if (extent.offset % 64 != 0 || extent.offset < end) {
      return InvalidArgument("extents: offsets must be multiples of 64, ascending, without overlap");
    }
    if (extent.bytes == 0 || extent.offset > kSlotBytesMax || extent.bytes > kSlotBytesMax - extent.offset) {
      return InvalidArgument("extents: an extent has 1 byte to 4 GiB, and so has a slot");
    }
    groups |= group;
    end = extent.offset + extent.bytes;
  }
  return OkStatus();
}

}  // namespace

Result<ClientOptions> ClientOptions::From(const fl_options& options) {
  if (options.api_version != FL_API_VERSION) {
    return InvalidArgument("api_version " + std::to_string(options.api_version) + ": this library has " +
                           std::to_string(FL_API_VERSION));
  }
  const std::size_t path_bytes = options.socket_path == nullptr ? 0 : std::strlen(options.socket_path);
  if (path_bytes == 0 || path_bytes >= sizeof(sockaddr_un::sun_path)) {
    return InvalidArgument("socket_path: a path of 1 to 107 bytes");
  }
  const std::size_t name_bytes = options.engine == nullptr ? 0 : std::strlen(options.engine);
  if (name_bytes == 0 || name_bytes > kIdBytesMax) return InvalidArgument("engine: a name of 1 to 256 bytes");
  if (!options.scheduler && !options.worker) return InvalidArgument("neither scheduler nor worker");
  if (options.rank_count == 0 || options.rank_count > kRanksMax ||
      (options.worker && options.rank >= options.rank_count)) {
    return InvalidArgument("rank must be under rank_count, and rank_count 1 to 64");
  }
  if (!(options.recompute_seconds_per_token >= 0) || options.recompute_seconds_per_token > 1e3) {
    return InvalidArgument("recompute_seconds_per_token: 0 (unknown) to 1000");
  }
  FORELOAD_RETURN_IF_ERROR(CheckExtents(options));
  ClientOptions made;
  made.socket_path = options.socket_path;
  made.engine = options.engine;
  std::copy_n(options.instance_id, 16, made.instance_id.begin());
  made.scheduler = options.scheduler != 0;
  made.worker = options.worker != 0;
  made.rank = options.rank;
  made.rank_count = options.rank_count;
  std::copy_n(options.name_space, 16, made.name_space.bytes.begin());
  std::copy_n(options.layout, 16, made.layout.begin());
  if (options.namespace_text != nullptr)
    made.namespace_text = std::string(options.namespace_text).substr(0, kTextBytesMax);
  made.extents.assign(options.extents, options.extents + options.extent_count);
  made.block_tokens = options.block_tokens;
  made.recompute_seconds_per_token = options.recompute_seconds_per_token;
  made.layer_major = options.layer_major != 0;
  made.demand_only = options.demand_only != 0;
  if (options.telemetry_endpoint != nullptr) made.telemetry_endpoint = options.telemetry_endpoint;
  if (options.breaker_open_ms != 0) made.breaker_open_ns = options.breaker_open_ms * kMillisecond;
  return made;
}

std::uint64_t ClientOptions::slot_bytes() const {
  return extents.empty() ? 0 : extents.back().offset + extents.back().bytes;
}

}  // namespace foreload::client
