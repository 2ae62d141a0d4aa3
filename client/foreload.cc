// The C API: checks arguments, turns errors into codes and texts, and stops exceptions of the standard library.
#include "client/foreload.h"

#include <sys/random.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "client/client.h"
#include "client/fork_guard.h"
#include "proto/control.pb.h"
#include "proto/limits.h"
#include "proto/namespace.h"
#include "proto/telemetry.pb.h"

using foreload::BlockKey;
using foreload::KeyListView;
using foreload::MonotonicNow;
using foreload::client::Answer;
using foreload::client::Client;

struct fl_client {
  Client* impl;  // not owned by destructors: a forked child leaks it
};

namespace {

constexpr std::int64_t kTimeoutUsMax = 3600LL * 1000 * 1000;  // an hour; longer waits are cut to it

thread_local std::string error_text;

int Fail(int code, std::string message) {
  error_text = std::move(message);
  return code;
}

// Runs `body` unless the client is unusable; running out of memory becomes a code.
template <typename Body>
int With(fl_client* client, Body body) {
  if (client == nullptr) return Fail(FL_EINVAL, "client is NULL");
  if (client->impl->disowned()) return Fail(FL_ESTATE, "a client cannot be used in a forked child: open another one");
  try {
    return body(*client->impl);
  } catch (const std::bad_alloc&) {
    return Fail(FL_ESYSTEM, "out of memory");
  } catch (const std::exception& error) {
    return Fail(FL_ESYSTEM, error.what());
  }
}

foreload::TimeNs DeadlineIn(std::int64_t timeout_us) {
  return MonotonicNow() + std::clamp<std::int64_t>(timeout_us, 0, kTimeoutUsMax) * foreload::kMicrosecond;
}

// Checks `keys` and makes a view of it. No allocation unless it is wrong.
bool View(const Client& client, const fl_keys* keys, KeyListView* view) {
  if (keys == nullptr) return false;
  if (keys->count > 0 && (keys->digests == nullptr || keys->digest_bytes < foreload::kDigestBytesMin ||
                          keys->digest_bytes > foreload::kDigestBytesMax || keys->count > INT_MAX)) {
    return false;
  }
  view->name_space = client.options().name_space;
  if (keys->name_space != nullptr) std::copy_n(keys->name_space, 16, view->name_space.bytes.begin());
  view->digests = keys->digests;
  view->digest_bytes = keys->digest_bytes;
  view->count = keys->count;
  return true;
}

int BadKeys() {
  return Fail(FL_EINVAL, "keys: NULL, or digests of other than 16 to 32 bytes");
}

std::string Text(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

bool IsId(const char* text) {
  return text != nullptr && *text != '\0' && ::strnlen(text, foreload::kIdBytesMax + 1) <= foreload::kIdBytesMax;
}
bool IsIdOrNull(const char* text) {
  return text == nullptr || *text == '\0' || IsId(text);
}

std::string Bytes(const foreload::NamespaceFingerprint& name_space) {
  return {reinterpret_cast<const char*>(name_space.bytes.data()), name_space.bytes.size()};
}

template <typename Message>
void SetKeys(const KeyListView& keys, Message* message) {
  if (keys.count == 0) return;
  message->set_name_space(Bytes(keys.name_space));
  message->set_digest_bytes(keys.digest_bytes);
  message->set_digests(keys.digests, std::size_t{keys.count} * keys.digest_bytes);
}

int Finish(const Answer& answer) {
  return answer.code == FL_OK ? FL_OK : Fail(answer.code, answer.message);
}

}  // namespace

extern "C" {

// --- life ------------------------------------------------------------------------------------------------------------

int fl_open(const fl_options* options, fl_client** client) {
  if (options == nullptr || client == nullptr) return Fail(FL_EINVAL, "options or client is NULL");
  try {
    auto checked = foreload::client::ClientOptions::From(*options);
    if (!checked.ok()) return Fail(FL_EINVAL, checked.status().message());
    auto opened = Client::Open(std::move(checked).value());
    if (!opened.ok()) {
      const bool wrong = opened.status().code() == foreload::StatusCode::kInvalidArgument;
      return Fail(wrong ? FL_EINVAL : FL_ESYSTEM, opened.status().message());
    }
    auto handle = std::make_unique<fl_client>(fl_client{opened.value().get()});
    foreload::client::GuardFork(opened.value().release());
    *client = handle.release();
    return FL_OK;
  } catch (const std::exception& error) {
    return Fail(FL_ESYSTEM, error.what());
  }
}

void fl_close(fl_client* client) {
  if (client == nullptr) return;
  if (client->impl->disowned()) return;
  foreload::client::UnguardFork(client->impl);
  delete client->impl;
  delete client;
}

int fl_connected(fl_client* client) {
  return With(client, [](Client& impl) -> int { return impl.connected() ? 1 : 0; });
}

int fl_connect_wait(fl_client* client, int64_t timeout_us) {
  return With(client, [&](Client& impl) -> int {
    std::string why;
    const int code = impl.ConnectWait(DeadlineIn(timeout_us), &why);
    return code == FL_OK ? code : Fail(code, why);
  });
}

const char* fl_error_text(void) {
  return error_text.c_str();
}

// --- identity --------------------------------------------------------------------------------------------------------

int fl_namespace(const fl_namespace_fields* fields, uint8_t name_space[16]) {
  if (fields == nullptr || name_space == nullptr) return Fail(FL_EINVAL, "fields or name_space is NULL");
  if (fields->model_revision == nullptr || *fields->model_revision == '\0') {
    return Fail(FL_EINVAL, "model_revision: blocks of different weights must not share a namespace");
  }
  const auto fingerprint = foreload::FingerprintOf(foreload::NamespaceFields{.model_revision = fields->model_revision,
                                                                             .lora = Text(fields->lora),
                                                                             .cache_salt = Text(fields->cache_salt),
                                                                             .kv_group = fields->kv_group,
                                                                             .weights_epoch = fields->weights_epoch});
  std::copy(fingerprint.bytes.begin(), fingerprint.bytes.end(), name_space);
  return FL_OK;
}

int fl_layout(const fl_layout_fields* fields, uint8_t layout[16]) {
  if (fields == nullptr || layout == nullptr) return Fail(FL_EINVAL, "fields or layout is NULL");
  if (fields->dtype == nullptr || *fields->dtype == '\0' || fields->block_tokens == 0 || fields->rank_count == 0) {
    return Fail(FL_EINVAL, "dtype, block_tokens and rank_count are needed");
  }
  const auto fingerprint =
      foreload::FingerprintOf(foreload::LayoutFields{.dtype = fields->dtype,
                                                     .block_tokens = fields->block_tokens,
                                                     .kv_layout = Text(fields->kv_layout),
                                                     .kernel = Text(fields->kernel),
                                                     .engine_version = Text(fields->engine_version),
                                                     .rank_count = fields->rank_count});
  std::copy(fingerprint.bytes.begin(), fingerprint.bytes.end(), layout);
  return FL_OK;
}

void fl_random_id(uint8_t id[16]) {
  for (size_t done = 0; done < 16;) {
    const ssize_t got = ::getrandom(id + done, 16 - done, 0);
    if (got > 0) done += static_cast<size_t>(got);
  }
}

// --- arena -----------------------------------------------------------------------------------------------------------

int fl_grant_host(fl_client* client, uint32_t slot_count, uint64_t slot_stride, uint32_t store_slots, void** base) {
  return With(client, [&](Client& impl) -> int {
    if (base == nullptr) return Fail(FL_EINVAL, "base is NULL");
    std::string why;
    const int code = impl.GrantHost(slot_count, slot_stride, store_slots, base, &why);
    return code == FL_OK ? code : Fail(code, why);
  });
}

int fl_grant_fd(fl_client* client, int fd, uint32_t slot_count, uint64_t slot_stride, uint32_t store_slots) {
  return With(client, [&](Client& impl) -> int {
    std::string why;
    const int code = impl.GrantFd(fd, slot_count, slot_stride, store_slots, &why);
    return code == FL_OK ? code : Fail(code, why);
  });
}

uint32_t fl_granted_slots(fl_client* client) {
  if (client == nullptr || client->impl->disowned()) return 0;
  return client->impl->granted_slots();
}

int fl_revoke_wait(fl_client* client, int64_t timeout_us) {
  return With(client, [&](Client& impl) -> int {
    std::string why;
    const int code = impl.RevokeWait(DeadlineIn(timeout_us), &why);
    return code == FL_OK ? code : Fail(code, why);
  });
}

// --- look-up: no lock, no system call, no allocation
// -------------------------------------------------------------------

static_assert(sizeof(fl_pinned) == sizeof(foreload::PinnedBlock));
static_assert(offsetof(fl_pinned, generation) == offsetof(foreload::PinnedBlock, generation));
static_assert(offsetof(fl_pinned, ready_mask) == offsetof(foreload::PinnedBlock, ready_mask));

int fl_lookup_pin(fl_client* client, const fl_keys* keys, fl_pinned* pinned) {
  return With(client, [&](Client& impl) -> int {
    KeyListView view;
    if (!View(impl, keys, &view)) return BadKeys();
    if (view.count > 0 && pinned == nullptr) return Fail(FL_EINVAL, "pinned is NULL");
    const std::uint32_t hits = impl.table().LookupPin(view, reinterpret_cast<foreload::PinnedBlock*>(pinned));
    impl.CountLookup(hits, view.count - hits);
    return static_cast<int>(hits);
  });
}

int fl_lookup(fl_client* client, const fl_keys* keys) {
  return With(client, [&](Client& impl) -> int {
    KeyListView view;
    if (!View(impl, keys, &view)) return BadKeys();
    return static_cast<int>(impl.table().Lookup(view));
  });
}

int fl_unpin(fl_client* client, const fl_pinned* pinned, uint32_t count, int used) {
  return With(client, [&](Client& impl) -> int {
    if (count > 0 && pinned == nullptr) return Fail(FL_EINVAL, "pinned is NULL");
    bool ok = true;
    for (std::uint32_t i = 0; i < count; ++i) {
      ok = impl.table().Unpin(pinned[i].slot, pinned[i].generation, used != 0) && ok;
    }
    return ok ? FL_OK : Fail(FL_EINVAL, "not pinned, or unpinned already");
  });
}

int fl_still_valid(fl_client* client, const fl_pinned* pinned) {
  return With(client, [&](Client& impl) -> int {
    if (pinned == nullptr) return Fail(FL_EINVAL, "pinned is NULL");
    return impl.table().StillValid(pinned->slot, pinned->generation) ? 1 : 0;
  });
}

// --- demand ----------------------------------------------------------------------------------------------------------

int fl_fetch(fl_client* client, const char* request_id, const fl_keys* keys, uint32_t first_block, int64_t deadline_us,
             uint64_t* fetch) {
  return With(client, [&](Client& impl) -> int {
    KeyListView view;
    if (!View(impl, keys, &view)) return BadKeys();
    if (!IsId(request_id)) return Fail(FL_EINVAL, "request_id: 1 to 256 bytes");
    if (view.count == 0 || view.count > foreload::kKeysPerMessageMax)
      return Fail(FL_EINVAL, "keys: 1 to 65536 of them");
    if (deadline_us <= 0 || deadline_us > kTimeoutUsMax) return Fail(FL_EINVAL, "deadline_us: 1 us to an hour");
    if (fetch == nullptr) return Fail(FL_EINVAL, "fetch is NULL");
    std::string why;
    const int code = impl.Fetch(request_id, view, first_block, deadline_us, fetch, &why);
    return code == FL_OK ? code : Fail(code, why);
  });
}

int fl_fetch_poll(fl_client* client, uint64_t fetch, fl_fetch_result* result) {
  return With(client, [&](Client& impl) -> int {
    if (result == nullptr) return Fail(FL_EINVAL, "result is NULL");
    auto outcome = impl.fetches().Poll(fetch, MonotonicNow());
    if (outcome.code == 1) *result = outcome.result;
    return outcome.code >= 0 ? outcome.code : Fail(outcome.code, std::move(outcome.message));
  });
}

int fl_fetch_wait(fl_client* client, uint64_t fetch, fl_fetch_result* result) {
  return With(client, [&](Client& impl) -> int {
    if (result == nullptr) return Fail(FL_EINVAL, "result is NULL");
    auto outcome = impl.fetches().Wait(fetch);
    if (outcome.code == 1) *result = outcome.result;
    return outcome.code >= 0 ? outcome.code : Fail(outcome.code, std::move(outcome.message));
  });
}

// --- store -----------------------------------------------------------------------------------------------------------

int fl_store_begin(fl_client* client, fl_store* store) {
  return With(client, [&](Client& impl) -> int {
    if (store == nullptr) return Fail(FL_EINVAL, "store is NULL");
    const int code = impl.stores().Begin(store);
    if (code == FL_OK) return code;
    return Fail(code, code == FL_EFULL ? "no store slot is free" : "no store ring is in force");
  });
}

int fl_store_commit(fl_client* client, const fl_store* store, const fl_keys* key, const uint8_t* parent_digest) {
  return With(client, [&](Client& impl) -> int {
    KeyListView view;
    if (!View(impl, key, &view)) return BadKeys();
    if (store == nullptr || view.count != 1) return Fail(FL_EINVAL, "store is NULL, or keys->count is not 1");
    BlockKey parent;
    if (parent_digest != nullptr) parent = BlockKey::From(view.name_space, {parent_digest, view.digest_bytes});
    const int code = impl.stores().Commit(*store, view.key(0), parent_digest == nullptr ? nullptr : &parent);
    if (code == FL_OK) return code;
    return Fail(code, code == FL_EUNAVAIL ? "its store ring is no longer in force: the block is not stored"
                                          : "not a store that was begun, or its size was changed");
  });
}

int fl_store_abort(fl_client* client, const fl_store* store) {
  return With(client, [&](Client& impl) -> int {
    if (store == nullptr) return Fail(FL_EINVAL, "store is NULL");
    return impl.stores().Abort(*store) == FL_OK ? FL_OK : Fail(FL_EINVAL, "not a store that was begun");
  });
}

// --- telemetry -------------------------------------------------------------------------------------------------------

int fl_emit_request(fl_client* client, const fl_request_event* event) {
  return With(client, [&](Client& impl) -> int {
    KeyListView view;
    if (event == nullptr || !View(impl, &event->keys, &view)) return BadKeys();
    if (!IsId(event->request_id) || !IsIdOrNull(event->session_id) || !IsIdOrNull(event->parent_request_id)) {
      return Fail(FL_EINVAL, "ids have 1 to 256 bytes");
    }
    if (event->state < FL_REQUEST_QUEUED || event->state > FL_REQUEST_ABORTED) return Fail(FL_EINVAL, "no such state");
    if (event->kind < FL_KIND_UNKNOWN || event->kind > FL_KIND_WORKFLOW) return Fail(FL_EINVAL, "no such kind");
    if (view.count > foreload::kKeysPerMessageMax) return Fail(FL_EINVAL, "keys: at most 65536");
    foreload::client::KeyList list{.name_space = view.name_space, .digest_bytes = view.digest_bytes, .digests = {}};
    if (view.count > 0) list.digests.assign(view.digests, view.digests + std::size_t{view.count} * view.digest_bytes);
    impl.requests().Update(event->request_id, event->state, list);
    if (impl.emitter() == nullptr) return FL_OK;
    auto message = std::make_unique<foreload::telemetry::AccessEvent>();
    foreload::telemetry::RequestEvent& body = *message->mutable_request();
    body.set_request_id(event->request_id);
    body.set_session_id(Text(event->session_id));
    body.set_parent_request_id(Text(event->parent_request_id));
    body.set_state(static_cast<foreload::telemetry::RequestState>(event->state));
    body.set_kind(static_cast<foreload::telemetry::RequestKind>(event->kind));
    body.set_priority(event->priority);
    SetKeys(view, &body);
    body.set_expected_start_ms(event->expected_start_ms);
    body.set_prompt_tokens(event->prompt_tokens);
    body.set_turn(event->turn);
    return impl.emitter()->queue().AddRequest(std::move(message)) ? FL_OK
                                                                  : Fail(FL_EFULL, "too many request events wait");
  });
}

int fl_emit_hint(fl_client* client, const fl_hint* hint) {
  return With(client, [&](Client& impl) -> int {
    KeyListView view;
    if (hint == nullptr || !View(impl, &hint->keys, &view)) return BadKeys();
    if (hint->action < FL_HINT_EXPECT || hint->action > FL_HINT_PIN) return Fail(FL_EINVAL, "no such action");
    if (!IsIdOrNull(hint->session_id)) return Fail(FL_EINVAL, "session_id: at most 256 bytes");
    if (Text(hint->session_id).empty() && view.count == 0) return Fail(FL_EINVAL, "a hint names a session or keys");
    if (view.count > foreload::kKeysPerMessageMax) return Fail(FL_EINVAL, "keys: at most 65536");
    if (impl.emitter() == nullptr) return FL_OK;
    auto message = std::make_unique<foreload::telemetry::AccessEvent>();
    foreload::telemetry::Hint& body = *message->mutable_hint();
    body.set_action(static_cast<foreload::telemetry::Hint::Action>(hint->action));
    body.set_session_id(Text(hint->session_id));
    SetKeys(view, &body);
    body.set_eta_ms(hint->eta_ms);
    body.set_sigma_ms(hint->sigma_ms);
    body.set_ttl_ms(hint->ttl_ms);
    return impl.emitter()->queue().AddRequest(std::move(message)) ? FL_OK : Fail(FL_EFULL, "too many events wait");
  });
}

int fl_emit_step_access(fl_client* client, const fl_step_access* access) {
  return With(client, [&](Client& impl) -> int {
    if (access == nullptr || !IsId(access->request_id)) return Fail(FL_EINVAL, "request_id: 1 to 256 bytes");
    if (access->layer_group >= foreload::kLayerGroupsMax) return Fail(FL_EINVAL, "layer_group must be under 64");
    if (access->block_count > foreload::kBlocksPerStepAccessMax) return Fail(FL_EINVAL, "block_count: at most 65536");
    if (access->block_count > 0 && access->block_ordinals == nullptr) return Fail(FL_EINVAL, "block_ordinals is NULL");
    if (access->sketch_source < 0 || !foreload::telemetry::SketchSource_IsValid(access->sketch_source)) {
      return Fail(FL_EINVAL, "no such sketch source");
    }
    if (impl.emitter() == nullptr) return FL_OK;
    auto message = std::make_unique<foreload::telemetry::AccessEvent>();
    foreload::telemetry::StepAccess& body = *message->mutable_step_access();
    body.set_request_id(access->request_id);
    body.set_step(access->step);
    body.set_layer_group(access->layer_group);
    body.set_head_group(access->head_group);
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < access->block_count; ++i) {
      if (access->block_ordinals[i] < before) return Fail(FL_EINVAL, "block_ordinals must ascend");
      body.add_block_ordinal_deltas(access->block_ordinals[i] - before);
      before = access->block_ordinals[i];
    }
    if (access->scores != nullptr) body.set_scores(access->scores, access->block_count);
    if (access->query_sketch != nullptr) body.set_query_sketch(access->query_sketch, 16);
    body.set_sketch_source(static_cast<foreload::telemetry::SketchSource>(access->sketch_source));
    body.set_draft_position(access->draft_position);
    impl.emitter()->queue().AddStep(std::move(message));
    return FL_OK;
  });
}

// --- control ---------------------------------------------------------------------------------------------------------

int fl_flush_wait(fl_client* client, int64_t timeout_us) {
  return With(client, [&](Client& impl) -> int {
    foreload::control::ControlMessage message;
    message.mutable_flush();
    return Finish(impl.Ask(message, DeadlineIn(timeout_us)));
  });
}

int fl_purge_wait(fl_client* client, const uint8_t name_space[16], int64_t timeout_us) {
  return With(client, [&](Client& impl) -> int {
    if (name_space == nullptr) return Fail(FL_EINVAL, "name_space is NULL");
    foreload::control::ControlMessage message;
    message.mutable_purge()->set_name_space(name_space, 16);
    return Finish(impl.Ask(message, DeadlineIn(timeout_us)));
  });
}

int fl_status_wait(fl_client* client, char* buf, size_t size, int64_t timeout_us) {
  return With(client, [&](Client& impl) -> int {
    if (buf == nullptr && size > 0) return Fail(FL_EINVAL, "buf is NULL");
    foreload::control::ControlMessage message;
    message.mutable_status_request();
    const Answer answer = impl.Ask(message, DeadlineIn(timeout_us));
    if (answer.code != FL_OK) return Finish(answer);
    if (size > 0) {
      const std::size_t bytes = std::min(answer.text.size(), size - 1);
      std::memcpy(buf, answer.text.data(), bytes);
      buf[bytes] = '\0';
    }
    return static_cast<int>(answer.text.size());
  });
}

int fl_get_counters(fl_client* client, fl_counters* counters) {
  return With(client, [&](Client& impl) -> int {
    if (counters == nullptr) return Fail(FL_EINVAL, "counters is NULL");
    *counters = impl.counters();
    return FL_OK;
  });
}

}  // extern "C"
