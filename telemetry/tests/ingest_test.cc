// The ingest thread against a publisher over real sockets (ipc:// in a folder of the test's own).
#include "telemetry/ingest.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <optional>
#include <thread>

#include "telemetry/tests/test_publisher.h"

namespace foreload::telemetry {
namespace {

using testing::Bytes;
using testing::CollectSink;
using testing::Pack;
using testing::RemovedEvent;
using testing::ServeUntil;
using testing::StoredEvent;
using testing::TestPublisher;
using Blocks = std::set<std::uint64_t>;

class IngestTest : public ::testing::Test {
 protected:
  SourceConfig Source(bool replay) {
    return {.name = "engine",
            .endpoint = dir_.Ipc("live"),
            .replay_endpoint = replay ? dir_.Ipc("replay") : "",
            .topic = "",
            .data_parallel_rank = std::nullopt,
            .curve = {}};
  }
  TestPublisher::Options Publisher(bool replay) {
    return {.endpoint = dir_.Ipc("live"), .replay_endpoint = replay ? dir_.Ipc("replay") : ""};
  }

  void Start(std::vector<SourceConfig> sources) {
    options_.sources = std::move(sources);
    options_.link.reconnect_min_ms = 10;
    options_.link.reconnect_max_ms = 50;
    options_.link.connect_timeout_ms = 200;
    auto ingest = Ingest::Create(options_, sink_, metrics_);
    ASSERT_TRUE(ingest.ok()) << ingest.status().ToString();
    ingest_ = std::move(ingest).value();
    ingest_->Start();
  }

  // True once the engine's subscription has arrived, so that nothing live is lost any more.
  bool Subscribed(TestPublisher& publisher) {
    return ServeUntil({&publisher}, [&] { return publisher.subscriptions() > 0; });
  }
  std::uint64_t Dropped(DropReason reason) const { return metrics_.dropped[static_cast<std::size_t>(reason)]->value(); }
  std::uint64_t Errors(DecodeError error) const {
    return metrics_.decode_errors[static_cast<std::size_t>(error)]->value();
  }

  testing::TempDir dir_;
  MetricRegistry registry_;
  TelemetryMetrics metrics_{registry_};
  CollectSink sink_;
  IngestOptions options_;
  std::unique_ptr<Ingest> ingest_;
};

TEST_F(IngestTest, LiveEventsArriveInOrder) {
  TestPublisher publisher(Publisher(false));
  Start({Source(false)});
  ASSERT_TRUE(Subscribed(publisher));
  for (std::uint64_t hash = 1; hash <= 100; ++hash) publisher.Store(hash);
  publisher.Publish({RemovedEvent({1, 2})});
  publisher.Publish({});  // a heartbeat
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return metrics_.heartbeats.value() == 1; }));
  EXPECT_EQ(sink_.blocks().size(), 98u);
  EXPECT_EQ(sink_.views(), "K");
  EXPECT_EQ(metrics_.kv_blocks.value(), 102u);
  EXPECT_EQ(metrics_.kv_live.messages.value(), 102u);
}

TEST_F(IngestTest, WhatWasPublishedBeforeJoiningIsReplayed) {
  TestPublisher publisher(Publisher(true));
  for (std::uint64_t hash = 1; hash <= 500; ++hash) publisher.Store(hash);
  Start({Source(true)});
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks().size() == 500; })) << "an idle engine's history";
  EXPECT_EQ(sink_.views(), "K");
}

TEST_F(IngestTest, GapIsHealedByReplayWithAndWithoutTopicFrames) {
  for (const bool topic : {true, false}) {
    SCOPED_TRACE(topic);
    auto publisher_options = Publisher(true);
    publisher_options.topic_in_replies = topic;
    CollectSink sink;
    TestPublisher publisher(publisher_options);
    options_.sources = {Source(true)};
    auto ingest = Ingest::Create(options_, sink, metrics_);
    ASSERT_TRUE(ingest.ok()) << ingest.status().ToString();
    ingest.value()->Start();
    ASSERT_TRUE(Subscribed(publisher));
    publisher.Store(1);
    publisher.Store(2, true);
    publisher.Publish({RemovedEvent({1})}, true);
    publisher.Store(3);
    EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink.blocks() == Blocks{2, 3}; }));
    EXPECT_EQ(sink.views(), "K");
  }
  EXPECT_GE(metrics_.replays.value(), 2u);
}

TEST_F(IngestTest, RestartDropsWhatWasKnown) {
  Start({Source(true)});
  std::optional<TestPublisher> publisher;
  publisher.emplace(Publisher(true));
  ASSERT_TRUE(Subscribed(*publisher));
  for (std::uint64_t hash = 1; hash <= 5; ++hash) publisher->Store(hash);
  ASSERT_TRUE(ServeUntil({&*publisher}, [&] { return sink_.blocks().size() == 5; }));

  publisher.reset();
  auto second = Publisher(true);
  second.time = 2;
  publisher.emplace(second);
  publisher->Store(7);
  EXPECT_TRUE(ServeUntil({&*publisher}, [&] { return sink_.blocks() == Blocks{7}; }));
  EXPECT_EQ(sink_.views(), "KRK");
  EXPECT_EQ(metrics_.kv_restarts.value(), 1u);
  EXPECT_GE(metrics_.reconnects.value(), 1u);
}

TEST_F(IngestTest, RestartIsSeenThoughTheNewPublisherIsAlreadyAhead) {
  Start({Source(true)});
  std::optional<TestPublisher> publisher;
  publisher.emplace(Publisher(true));
  ASSERT_TRUE(Subscribed(*publisher));
  publisher->Store(1);
  ASSERT_TRUE(ServeUntil({&*publisher}, [&] { return sink_.blocks() == Blocks{1}; }));

  publisher.reset();
  auto second = Publisher(true);
  second.time = 2;
  publisher.emplace(second);
  for (std::uint64_t hash = 11; hash <= 14; ++hash) publisher->Store(hash, true);
  EXPECT_TRUE(ServeUntil({&*publisher}, [&] {
    return sink_.blocks() == Blocks{11, 12, 13, 14};
  })) << "without a single live message";
  EXPECT_EQ(sink_.views(), "KRK");
}

TEST_F(IngestTest, UnreplayableGapMakesTheViewUnknownUntilAClear) {
  auto publisher_options = Publisher(true);
  publisher_options.ring_max = 2;
  TestPublisher publisher(publisher_options);
  Start({Source(true)});
  ASSERT_TRUE(Subscribed(publisher));
  publisher.Store(1);
  ASSERT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{1}; }));
  for (std::uint64_t hash = 2; hash <= 6; ++hash) publisher.Store(hash, true);
  publisher.Store(7);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{1, 6, 7}; }));
  EXPECT_EQ(sink_.views(), "KU");
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return metrics_.sources_unknown.value() == 1; }));

  publisher.Publish({testing::ClearedEvent(), StoredEvent({9})});
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{9}; }));
  EXPECT_EQ(sink_.views(), "KUK");
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return metrics_.sources_unknown.value() == 0; }));
}

TEST_F(IngestTest, PublisherIdsOfTwentyFourByteFramesShowARestart) {
  Start({Source(false)});
  std::optional<TestPublisher> publisher;
  auto first = Publisher(false);
  first.publisher_id = 1;
  publisher.emplace(first);
  ASSERT_TRUE(Subscribed(*publisher));
  publisher->Store(1);
  ASSERT_TRUE(ServeUntil({&*publisher}, [&] { return sink_.blocks() == Blocks{1}; }));
  publisher.reset();
  auto second = Publisher(false);
  second.publisher_id = 2;
  second.first = 1;  // exactly the next number
  publisher.emplace(second);
  ASSERT_TRUE(Subscribed(*publisher));
  publisher->Store(2);
  EXPECT_TRUE(ServeUntil({&*publisher}, [&] { return sink_.blocks() == Blocks{2}; }));
  EXPECT_EQ(sink_.views(), "KRU");
}

TEST_F(IngestTest, GarbageCostsCountersAndTheNextEventIsServed) {
  TestPublisher publisher(Publisher(false));
  Start({Source(false)});
  ASSERT_TRUE(Subscribed(publisher));
  publisher.Store(1);
  const Frame topic{'k', 'v'};
  const Frame batch = testing::BatchOf({StoredEvent({66})});
  publisher.SendRaw({topic});
  publisher.SendRaw({topic, batch});
  publisher.SendRaw({topic, testing::SequenceBytes(1), batch, batch});
  publisher.SendRaw(std::vector<Frame>(1000, topic));
  publisher.SendRaw({topic, Frame(7), batch});
  publisher.SendRaw({topic, Frame(9), batch});
  publisher.SendRaw({topic, Frame(8, 0xff), batch});  // an end marker has no place here
  publisher.SendRaw({topic, Frame(8, 0xfe), batch});
  publisher.PublishPayload({0xc1, 0xc1});  // takes number 1
  publisher.PublishPayload(testing::FromHex("ddff000000"));
  publisher.Store(2);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{1, 2}; }));
  EXPECT_EQ(sink_.views(), "KU") << "what two undecodable batches said is unknown";
  EXPECT_EQ(Dropped(DropReason::kFrameCount), 4u);
  EXPECT_EQ(Dropped(DropReason::kSequenceFrame), 4u);
  EXPECT_EQ(Errors(DecodeError::kMalformed), 1u);
  EXPECT_EQ(Errors(DecodeError::kLimit), 1u);
}

TEST_F(IngestTest, HugeMessageEndsTheConnectionAndTheStreamGoesOn) {
  options_.link.message_bytes_max = 64 << 10;
  TestPublisher publisher(Publisher(false));
  Start({Source(false)});
  ASSERT_TRUE(Subscribed(publisher));
  publisher.Store(1);
  ASSERT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{1}; }));
  publisher.PublishPayload(Bytes(1 << 20));
  ASSERT_TRUE(ServeUntil({&publisher}, [&] { return metrics_.reconnects.value() >= 1; }));
  // The new subscription may still be under way: what is lost meanwhile is as lost as the huge one.
  EXPECT_TRUE(ServeUntil({&publisher}, [&] {
    publisher.Store(2);
    return sink_.blocks() == Blocks{1, 2};
  }));
  EXPECT_EQ(sink_.views(), "KU");
}

TEST_F(IngestTest, RefusedBatchesAreOfferedAgainAndNothingIsLost) {
  TestPublisher publisher(Publisher(true));
  options_.tracker.buffered_batches_max = 20;
  Start({Source(true)});
  ASSERT_TRUE(Subscribed(publisher));
  sink_.Refuse(true);
  for (std::uint64_t hash = 1; hash <= 200; ++hash) publisher.Store(hash);
  ASSERT_TRUE(ServeUntil({&publisher}, [&] { return sink_.refusals() > 3 && Dropped(DropReason::kBufferFull) > 0; }));
  sink_.Refuse(false);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks().size() == 200; }));
  EXPECT_EQ(sink_.views(), "K");
  EXPECT_EQ(metrics_.kv_blocks.value(), 200u);
}

TEST_F(IngestTest, FloodOfOneEngineDoesNotStarveAnother) {
  SourceConfig quiet_source = Source(false);
  quiet_source.endpoint = dir_.Ipc("quiet");
  auto quiet_options = Publisher(false);
  quiet_options.endpoint = quiet_source.endpoint;
  TestPublisher quiet(quiet_options);
  Start({Source(false), quiet_source});
  ASSERT_TRUE(Subscribed(quiet));

  std::atomic<bool> stop = false;
  std::thread flooder([&] {
    TestPublisher loud(Publisher(false));
    const Bytes batch = testing::BatchOf(std::vector<Bytes>(50, StoredEvent({1, 2, 3})));
    while (!stop) {
      for (int i = 0; i < 100; ++i) loud.PublishPayload(batch);
      loud.Serve(0);
    }
  });
  EXPECT_TRUE(ServeUntil({&quiet}, [&] { return sink_.batches(0) > 100; }));
  for (std::uint64_t hash = 1; hash <= 3; ++hash) {  // each while the flood goes on
    quiet.Store(hash);
    EXPECT_TRUE(ServeUntil({&quiet}, [&] { return sink_.blocks(1).size() == hash; }));
  }
  stop = true;
  flooder.join();
}

TEST_F(IngestTest, ConsumerMayBindAndItsPathIsPrivate) {
  SourceConfig source = Source(false);
  source.bind = true;
  Start({source});
  struct stat info {};
  ASSERT_EQ(stat(dir_.File("live").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto publisher_options = Publisher(false);
  publisher_options.connect = true;
  TestPublisher publisher(publisher_options);
  ASSERT_TRUE(Subscribed(publisher));
  publisher.Store(1);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{1}; }));
  EXPECT_EQ(ingest_->bound_endpoint(0), source.endpoint);
}

TEST_F(IngestTest, IdleEngineIsNotTornDown) {
  options_.link.heartbeat_interval_ms = 10;
  options_.link.heartbeat_timeout_ms = 100;
  TestPublisher publisher(Publisher(false));
  Start({Source(false)});
  ASSERT_TRUE(Subscribed(publisher));
  EXPECT_FALSE(ServeUntil(
      {&publisher}, [&] { return metrics_.reconnects.value() > 0; }, std::chrono::seconds(1)))
      << "reconnected within ten time-outs of silence";
  publisher.Store(1);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.blocks() == Blocks{1}; }));
}

TEST_F(IngestTest, AccessGapsAndRestartsAreCounted) {
  SourceConfig source = Source(false);
  source.kind = SourceKind::kAccess;
  TestPublisher publisher(Publisher(false));
  Start({source});
  ASSERT_TRUE(Subscribed(publisher));
  const auto send = [&](std::uint64_t number, char id, int events) {
    AccessBatch batch;
    batch.set_publisher_id(std::string(16, id));
    for (int i = 0; i < events; ++i) {
      auto* request = batch.add_events()->mutable_request();
      request->set_request_id("r" + std::to_string(i));
      request->set_state(REQUEST_STATE_QUEUED);
    }
    const std::string bytes = batch.SerializeAsString();
    const std::string_view topic = "foreload";
    publisher.SendRaw(
        {Frame(topic.begin(), topic.end()), testing::SequenceBytes(number), Frame(bytes.begin(), bytes.end())});
  };
  send(5, 'a', 1);  // joined late: no gap
  send(6, 'a', 2);
  send(6, 'a', 2);
  send(9, 'a', 1);
  send(0, 'b', 1);
  publisher.SendRaw({Frame{'f', 'o', 'r', 'e', 'l', 'o', 'a', 'd'}, testing::SequenceBytes(1), Frame{0xff}});
  send(2, 'b', 1);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return sink_.access_batches() == 5; }));
  EXPECT_EQ(metrics_.access_gaps.value(), 2u);
  EXPECT_EQ(metrics_.access_missing.value(), 3u);
  EXPECT_EQ(metrics_.access_restarts.value(), 1u);
  EXPECT_EQ(metrics_.access_events.value(), 6u);
  EXPECT_EQ(metrics_.duplicates.value(), 1u);
  EXPECT_EQ(metrics_.access_errors[static_cast<std::size_t>(AccessError::kMalformed)]->value(), 1u);
  EXPECT_EQ(sink_.views(), "");
}

TEST_F(IngestTest, StatusesTellWhereASourceStands) {
  TestPublisher publisher(Publisher(false));
  Start({Source(false)});
  ASSERT_TRUE(Subscribed(publisher));
  publisher.Store(1);
  publisher.Store(2);
  EXPECT_TRUE(ServeUntil({&publisher}, [&] { return ingest_->statuses().at(0).next == 2; }));
  const SourceStatus status = ingest_->statuses().at(0);
  EXPECT_EQ(status.name, "engine");
  EXPECT_TRUE(status.connected);
  EXPECT_EQ(status.received, 1u);
  EXPECT_EQ(status.connections, 1u);
  EXPECT_FALSE(status.view_unknown);
}

Status CreateWith(SourceConfig source) {
  MetricRegistry registry;
  TelemetryMetrics metrics(registry);
  CollectSink sink;
  source.name = "e";
  IngestOptions options;
  options.sources = {source};
  return Ingest::Create(options, sink, metrics).status();
}

TEST(IngestConfig, UnsafeAndImpossibleSourcesAreRefused) {
  SourceConfig source;
  source.endpoint = "tcp://10.0.0.1:5557";
  EXPECT_EQ(CreateWith(source).code(), StatusCode::kInvalidArgument);
  source.insecure = true;
  EXPECT_TRUE(CreateWith(source).ok());
  source.insecure = false;
  source.curve = {"short", "short", "short"};
  EXPECT_EQ(CreateWith(source).code(), StatusCode::kInvalidArgument);
  source.curve = {};
  source.endpoint = "tcp://127.0.0.1:5557";
  EXPECT_TRUE(CreateWith(source).ok());
  source.replay_endpoint = "tcp://10.0.0.1:5558";
  EXPECT_EQ(CreateWith(source).code(), StatusCode::kInvalidArgument);
  source.replay_endpoint = "tcp://127.0.0.1:5558";
  EXPECT_TRUE(CreateWith(source).ok());
  source.dialect = Dialect::kMooncake;
  EXPECT_EQ(CreateWith(source).code(), StatusCode::kInvalidArgument);
  source.dialect = Dialect::kAuto;
  source.kind = SourceKind::kAccess;
  EXPECT_EQ(CreateWith(source).code(), StatusCode::kInvalidArgument);
  source = {};
  source.endpoint = "udp://x";
  EXPECT_EQ(CreateWith(source).code(), StatusCode::kInvalidArgument);
  source.endpoint = "ipc:///no/such/folder/x";
  source.bind = true;
  EXPECT_FALSE(CreateWith(source).ok());
}

}  // namespace
}  // namespace foreload::telemetry
