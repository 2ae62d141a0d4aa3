#include "prefetcher/service/observe.h"

#include <span>
#include <variant>

namespace foreload::service {

void ObserveAdapter::SetBlockBytes(EngineId engine, std::uint64_t bytes) {
  block_bytes_[engine] = bytes;
}

void ObserveAdapter::After(const core::EventBatch& batch) {
  for (const core::Event& event : batch.events) {
    if (const auto* up = std::get_if<core::EngineUp>(&event)) {
      if (up->block_bytes > 0) block_bytes_[up->engine] = up->block_bytes;
    } else if (const auto* stored = std::get_if<core::KvStored>(&event)) {
      const auto bytes = block_bytes_.find(stored->engine);
      if (stored->tier != core::Tier::kHbm || bytes == block_bytes_.end() || bytes->second == 0) continue;
      const core::BlockView view = core_.View(stored->engine, stored->block);
      if (view.in_dram || view.on_ssd) continue;
      if (bytes_.size() <= stored->block.value) bytes_.resize(stored->block.value + 1);
      bytes_[stored->block.value] = bytes->second;
      events_.Add(core::StoreOffered{.store = next_store_++,
                                     .engine = stored->engine,
                                     .block = stored->block,
                                     .parent = stored->parent,
                                     .bytes = bytes->second});
    } else if (const auto* queued = std::get_if<core::RequestQueued>(&event)) {
      const auto first = batch.blocks.begin() + queued->blocks.begin;
      requests_[queued->request] = {queued->engine, {first, first + queued->blocks.count}};
    } else if (const auto* scheduled = std::get_if<core::RequestScheduled>(&event)) {
      Schedule(scheduled->request);
    } else if (const auto* finished = std::get_if<core::RequestFinished>(&event)) {
      requests_.erase(finished->request);
    } else if (const auto* aborted = std::get_if<core::RequestAborted>(&event)) {
      requests_.erase(aborted->request);
    } else if (const auto* down = std::get_if<core::EngineDown>(&event)) {
      std::erase_if(requests_, [down](const auto& entry) { return entry.second.engine == down->engine; });
    }
  }
}

std::size_t ObserveAdapter::UsePrefix(const Request& request, std::size_t first) {
  for (std::size_t i = first; i < request.blocks.size(); ++i) {
    const core::BlockView view = core_.View(request.engine, request.blocks[i]);
    if (view.in_engine) continue;
    if (!view.slot.valid() || !view.slot_ready) return i;
    events_.Add(core::SlotUsed{request.engine, view.slot});
  }
  return request.blocks.size();
}

void ObserveAdapter::Schedule(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const Request& request = it->second;
  const std::size_t missing = UsePrefix(request, 0);
  if (missing == request.blocks.size()) return;
  const core::BlockView view = core_.View(request.engine, request.blocks[missing]);
  if (!view.slot.valid() && !view.in_dram && !view.on_ssd) return;  // nothing stored: recomputed at once
  const std::uint64_t demand = next_demand_++;
  demands_[demand] = {id, missing};
  events_.Add(core::DemandAsked{.demand = demand, .engine = request.engine, .request = id},
              std::span(request.blocks).subspan(missing));
}

void ObserveAdapter::OnDemandDone(const core::DemandDone& done) {
  const auto it = demands_.find(done.demand);
  if (it == demands_.end()) return;
  const auto [request, first] = it->second;
  demands_.erase(it);
  if (const auto live = requests_.find(request); live != requests_.end()) UsePrefix(live->second, first);
}

}  // namespace foreload::service
