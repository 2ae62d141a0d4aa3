#include "telemetry/access_validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "proto/limits.h"

namespace foreload::telemetry {
namespace {

AccessBatch Good() {
  AccessBatch batch;
  batch.set_publisher_id(std::string(16, 'p'));
  batch.set_engine("engine-0");
  return batch;
}

RequestEvent* AddRequest(AccessBatch& batch) {
  RequestEvent* request = batch.add_events()->mutable_request();
  request->set_request_id("r");
  request->set_state(REQUEST_STATE_QUEUED);
  request->set_name_space(std::string(16, 'n'));
  request->set_digest_bytes(20);
  request->set_digests(std::string(60, 'd'));
  return request;
}
StepAccess* AddStep(AccessBatch& batch) {
  StepAccess* step = batch.add_events()->mutable_step_access();
  step->set_request_id("r");
  for (const std::uint32_t delta : {0, 3, 1}) step->add_block_ordinal_deltas(delta);
  step->set_scores("abc");
  step->set_query_sketch(std::string(16, 'q'));
  return step;
}
BlockSketch* AddSketch(AccessBatch& batch) {
  BlockSketch* sketch = batch.add_events()->mutable_block_sketch();
  sketch->set_name_space(std::string(16, 'n'));
  sketch->set_digest(std::string(32, 'd'));
  sketch->set_codes(std::string(48, 'c'));
  return sketch;
}
Hint* AddHint(AccessBatch& batch) {
  Hint* hint = batch.add_events()->mutable_hint();
  hint->set_action(Hint::ACTION_EXPECT);
  hint->set_session_id("s");
  return hint;
}
LiveRequest* AddLive(AccessBatch& batch) {
  LiveRequest* live = batch.add_events()->mutable_live_request();
  live->set_request_id("r");
  live->set_state(REQUEST_STATE_SCHEDULED);
  return live;
}

Result<std::unique_ptr<AccessBatch>> Decode(std::string_view bytes, AccessReport* report = nullptr) {
  return DecodeAccessBatch({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, report);
}

TEST(AccessValidate, GoodEventsOfEveryKindPass) {
  AccessBatch batch = Good();
  AddRequest(batch);
  AddStep(batch);
  AddSketch(batch);
  AddHint(batch);
  AddLive(batch);
  batch.add_events()->mutable_request()->set_request_id("without keys");
  batch.mutable_events(5)->mutable_request()->set_state(REQUEST_STATE_ABORTED);
  AccessReport report;
  const auto decoded = Decode(batch.SerializeAsString(), &report);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded.value()->SerializeAsString(), batch.SerializeAsString());
  EXPECT_EQ(report.errors, AccessReport{}.errors);
}

TEST(AccessValidate, BadEventsAreTakenOutAndCountedByReason) {
  const std::string long_id(kIdBytesMax + 1, 'x');
  const std::vector<std::pair<std::function<void(AccessBatch&)>, AccessError>> cases{
      {[](AccessBatch& b) { b.add_events(); }, AccessError::kEmpty},
      {[](AccessBatch& b) { AddRequest(b)->clear_request_id(); }, AccessError::kId},
      {[&](AccessBatch& b) { AddRequest(b)->set_session_id(long_id); }, AccessError::kId},
      {[&](AccessBatch& b) { AddRequest(b)->set_parent_request_id(long_id); }, AccessError::kId},
      {[](AccessBatch& b) { AddRequest(b)->set_state(REQUEST_STATE_UNSPECIFIED); }, AccessError::kState},
      {[](AccessBatch& b) { AddRequest(b)->set_state(static_cast<RequestState>(77)); }, AccessError::kState},
      {[](AccessBatch& b) { AddRequest(b)->set_digest_bytes(15); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddRequest(b)->set_digest_bytes(33); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddRequest(b)->set_digest_bytes(0); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddRequest(b)->set_digests(std::string(61, 'd')); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddRequest(b)->set_name_space("short"); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddRequest(b)->set_digests(std::string(20 * (kKeysPerMessageMax + 1), 'd')); },
       AccessError::kDigests},
      {[](AccessBatch& b) { AddStep(b)->add_block_ordinal_deltas(0); }, AccessError::kOrdinals},
      {[](AccessBatch& b) { AddStep(b)->add_block_ordinal_deltas(1); }, AccessError::kOrdinals},
      {[](AccessBatch& b) {
         StepAccess* step = AddStep(b);
         step->clear_scores();
         step->add_block_ordinal_deltas(std::numeric_limits<std::uint32_t>::max());
       },
       AccessError::kOrdinals},
      {[](AccessBatch& b) {
         StepAccess* step = AddStep(b);
         step->clear_scores();
         for (std::size_t i = 0; i < kBlocksPerStepAccessMax; ++i) step->add_block_ordinal_deltas(1);
       },
       AccessError::kOrdinals},
      {[](AccessBatch& b) { AddStep(b)->set_query_sketch("x"); }, AccessError::kSketch},
      {[](AccessBatch& b) { AddSketch(b)->set_codes(std::string(16, 'c')); }, AccessError::kSketch},
      {[](AccessBatch& b) { AddSketch(b)->set_codes(std::string(80, 'c')); }, AccessError::kSketch},
      {[](AccessBatch& b) { AddSketch(b)->set_codes(std::string(33, 'c')); }, AccessError::kSketch},
      {[](AccessBatch& b) { AddSketch(b)->set_digest("short"); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddSketch(b)->set_norm(std::nanf("")); }, AccessError::kState},
      {[](AccessBatch& b) { AddHint(b)->clear_session_id(); }, AccessError::kEmpty},
      {[](AccessBatch& b) { AddHint(b)->set_ttl_ms(-1); }, AccessError::kState},
      {[](AccessBatch& b) { AddHint(b)->clear_action(); }, AccessError::kState},
      {[](AccessBatch& b) { AddLive(b)->set_key_count(kKeysPerMessageMax + 1); }, AccessError::kDigests},
      {[](AccessBatch& b) { AddLive(b)->clear_state(); }, AccessError::kState},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    AccessBatch batch = Good();
    AddLive(batch)->set_request_id("first");
    cases[i].first(batch);
    AddLive(batch)->set_request_id("last");
    AccessReport report;
    const auto decoded = Decode(batch.SerializeAsString(), &report);
    ASSERT_TRUE(decoded.ok());
    ASSERT_EQ(decoded.value()->events_size(), 2);
    EXPECT_EQ(decoded.value()->events(0).live_request().request_id(), "first");
    EXPECT_EQ(decoded.value()->events(1).live_request().request_id(), "last");
    EXPECT_EQ(report.errors[static_cast<std::size_t>(cases[i].second)], 1u) << AccessErrorName(cases[i].second);
  }
}

TEST(AccessValidate, ImpossibleBatchesAreErrors) {
  AccessReport report;
  EXPECT_FALSE(Decode("\xff", &report).ok());
  EXPECT_FALSE(Decode("\x1a\x05\x01", &report).ok());
  EXPECT_EQ(report.errors[static_cast<std::size_t>(AccessError::kMalformed)], 2u);

  AccessBatch batch = Good();
  batch.set_publisher_id("short");
  EXPECT_FALSE(Decode(batch.SerializeAsString(), &report).ok());
  batch = Good();
  batch.set_engine(std::string(kIdBytesMax + 1, 'e'));
  EXPECT_FALSE(Decode(batch.SerializeAsString(), &report).ok());
  EXPECT_FALSE(Decode("", &report).ok()) << "an empty message names no publisher";
  EXPECT_EQ(report.errors[static_cast<std::size_t>(AccessError::kPublisher)], 3u);

  batch = Good();
  for (std::size_t i = 0; i <= kAccessEventsPerBatchMax; ++i) batch.add_events();
  EXPECT_FALSE(Decode(batch.SerializeAsString(), &report).ok());
  EXPECT_FALSE(Decode(std::string(kAccessBatchBytesMax + 1, '\0'), &report).ok());
  EXPECT_EQ(report.errors[static_cast<std::size_t>(AccessError::kLimit)], 2u);
}

TEST(AccessValidate, UnknownFieldsAreIgnored) {
  const std::string bytes = Good().SerializeAsString() + "\xfa\x07\x03new";  // field 127
  const auto decoded = Decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value()->engine(), "engine-0");
}

}  // namespace
}  // namespace foreload::telemetry
