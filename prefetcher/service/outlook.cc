#include "prefetcher/service/outlook.h"

#include <algorithm>
#include <variant>

namespace foreload::service {

void Outlook::After(const core::EventBatch& batch) {
  for (const core::Event& event : batch.events) {
    if (const auto* queued = std::get_if<core::RequestQueued>(&event)) {
      End(queued->request);
      const auto first = batch.blocks.begin() + queued->blocks.begin;
      Waiting& waiting = waiting_[queued->request];
      waiting = {queued->engine, {first, first + queued->blocks.count}, 0};
      Look(queued->request, waiting);
      tell_(waiting.engine, queued->request, waiting.stored);
    } else if (const auto* scheduled = std::get_if<core::RequestScheduled>(&event)) {
      End(scheduled->request);
    } else if (const auto* finished = std::get_if<core::RequestFinished>(&event)) {
      End(finished->request);
    } else if (const auto* aborted = std::get_if<core::RequestAborted>(&event)) {
      End(aborted->request);
    } else if (const auto* down = std::get_if<core::EngineDown>(&event)) {
      std::vector<RequestId> gone;
      for (const auto& [request, waiting] : waiting_) {
        if (waiting.engine == down->engine) gone.push_back(request);
      }
      for (const RequestId request : gone) End(request);
    }
  }
}

// Goes on from what is known to be there and waits for the first block that is not.
void Outlook::Look(RequestId request, Waiting& waiting) {
  for (; waiting.stored < waiting.blocks.size(); ++waiting.stored) {
    const core::BlockView view = core_.View(waiting.engine, waiting.blocks[waiting.stored]);
    if (!view.in_engine && !view.slot.valid() && !view.in_dram && !view.on_ssd) break;
  }
  if (waiting.stored < waiting.blocks.size()) missing_[waiting.blocks[waiting.stored]].push_back(request);
}

void Outlook::OnStored(BlockId block) {
  const auto it = missing_.find(block);
  if (it == missing_.end()) return;
  const std::vector<RequestId> requests = std::move(it->second);
  missing_.erase(it);
  for (const RequestId request : requests) {
    const auto waiting = waiting_.find(request);
    if (waiting == waiting_.end()) continue;
    const std::uint32_t before = waiting->second.stored;
    Look(request, waiting->second);
    if (waiting->second.stored > before) tell_(waiting->second.engine, request, waiting->second.stored);
  }
}

void Outlook::End(RequestId request) {
  const auto it = waiting_.find(request);
  if (it == waiting_.end()) return;
  if (it->second.stored < it->second.blocks.size()) {
    const auto missing = missing_.find(it->second.blocks[it->second.stored]);
    if (missing != missing_.end()) {
      std::erase(missing->second, request);
      if (missing->second.empty()) missing_.erase(missing);
    }
  }
  waiting_.erase(it);
}

}  // namespace foreload::service
