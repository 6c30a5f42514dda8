// SPDX-License-Identifier: Apache-2.0
// Leased rows whose large cells are lent to the process of the worker.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/remote/spawn.hpp"
#include "actors/stream/worker_leases.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/local_buffers.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleTask;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::size_t kLarge = 4096;
constexpr Duration kDelay = 1s;
const Status kFull(Errc::kResourceExhausted, "segment pool 7: full");

class LentRowsTest : public ActorTest {
protected:
  void SetUp() override {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    start(Opened(buffers_));
  }
  void TearDown() override {
    remote_->stop();
    ActorTest::TearDown();
  }
  // Starts a process that resolves cells with `resolver`, or fails to.
  using Opened = Result<std::shared_ptr<actors::BufferResolver>>;
  void start(Opened resolver) {
    if (remote_.has_value()) {
      remote_->stop();
    }
    LentRows lending;
    lending.rows.lender = buffers_;
    lending.open = [resolver = std::move(resolver)](const actors::SegmentAddress&) {
      return resolver;
    };
    remote_.emplace(
        system(), stream_handle_,
        [this](const actors::StreamConsumerActor&) {
          return keep(system().spawn(
              [](caf::event_based_actor*) { return caf::behavior{[](atom::drain) {}}; }));
        },
        [this](SimulatedPeers& peers) {
          peers.network().set_fates(
              [this](const Buffer&) {
                return delays_ ? transport::FrameFate::kDelayed : transport::FrameFate::kCarried;
              },
              kDelay);
        },
        std::move(lending));
    worker_ = keep(remote_->start("reward", 0));
    drain();
  }
  Reply<LeaseReply> lease(SampleTask task = SampleTask::kReward) {
    actors::LeaseRequest request = sample_lease(task, 4, 10s);
    request.consumer = "reward-0";
    auto reply = ask<LeaseReply>(remote_->stream(), atom::lease_v, request);
    drain();
    return reply;
  }
  // Has the stream reply with rows that have one cell each.
  void reply_with(const std::vector<Buffer>& cells) {
    LeaseReply leased;
    for (const Buffer& cell : cells) {
      storage::LeasedRow& row = leased.rows.emplace_back();
      row.row.id = {leased.rows.size() - 1};
      row.lease = {row.row.id, 0, 1};
      row.columns = {{{0}, cell}};
    }
    take(stream_->leases).reply(std::move(leased));
    drain();
  }
  void wait(Duration time) {
    for (; time > 0ms; time -= 100ms) {
      advance(100ms);
    }
  }
  static Buffer cell_of(std::size_t bytes) {
    return Buffer::adopt(std::vector<std::byte>(bytes, std::byte{5}), DType::kU8);
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<LocalBuffers> buffers_ = std::make_shared<LocalBuffers>();
  actors::StreamActor stream_handle_;
  std::optional<RemoteWorkers> remote_;
  actors::RemoteWorkerActor worker_;
  bool delays_ = false;  // the network delays frames
};

TEST_F(LentRowsTest, LargeCellsAreReadWhereTheyAreAndSmallOnesAreSent) {
  const Buffer large = cell_of(kLarge);
  const Buffer small = cell_of(kLarge - 1);
  const auto reply = lease();
  reply_with({large, small});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  ASSERT_EQ(reply.value().rows.size(), 2U);
  const Buffer& read = reply.value().rows[0].columns[0].value;
  EXPECT_EQ(read.bytes().data(), large.bytes().data());
  EXPECT_NE(reply.value().rows[1].columns[0].value.bytes().data(), small.bytes().data());
  EXPECT_EQ(reply.value().rows[1].columns[0].value.size_bytes(), kLarge - 1);
  EXPECT_EQ(buffers_->loans(), 0U);
  EXPECT_EQ(buffers_->resolved, 1);
}

TEST_F(LentRowsTest, CellsThatFindNoRoomAreSent) {
  buffers_->failures = {{}, kFull};
  const auto reply = lease();
  reply_with({cell_of(kLarge), cell_of(kLarge), cell_of(kLarge)});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  for (const storage::LeasedRow& row : reply.value().rows) {
    EXPECT_TRUE(std::ranges::equal(row.columns[0].value.bytes(), cell_of(kLarge).bytes()));
  }
  EXPECT_EQ(reply.value().rows.size(), 3U);
  EXPECT_EQ(buffers_->lends, 2) << "the third one would find no room either";
  EXPECT_EQ(buffers_->resolved, 1);
  EXPECT_EQ(buffers_->loans(), 0U);
}

TEST_F(LentRowsTest, ALentRowMayBeLargerThanAMessage) {
  const auto reply = lease();
  reply_with({cell_of(std::size_t{40} << 20U)});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().rows.size(), 1U);
  EXPECT_TRUE(stream_->nacks.empty());
}

// The rows are one group, of which the second row finds no room, neither in the pool nor in the
// message.
TEST_F(LentRowsTest, WhatIsLentOfRowsThatAreGivenBackIsTakenBack) {
  buffers_->failures = {{}, kFull};
  const auto reply = lease(SampleTask::kAdvantage);
  reply_with({cell_of(kLarge), cell_of(std::size_t{17} << 20U)});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_TRUE(reply.value().rows.empty());
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].rows.size(), 2U);
  EXPECT_EQ(buffers_->resolved, 0);
  EXPECT_EQ(buffers_->loans(), 0U);
}

// The stream replies in time, and the network delays the rows.
TEST_F(LentRowsTest, RowsThatComeTooLateReturnWhatWasLent) {
  const auto reply = lease();
  wait(actors::kReplyMargin + 10s - kDelay / 2);
  delays_ = true;
  reply_with({cell_of(kLarge), cell_of(kLarge)});
  EXPECT_EQ(buffers_->loans(), 2U);
  wait(kDelay);
  EXPECT_EQ(reply.status().code(), Errc::kTimeout) << reply.status().to_string();
  EXPECT_EQ(reply.count(), 1);
  EXPECT_EQ(buffers_->resolved, 2);
  EXPECT_EQ(buffers_->loans(), 0U);
}

TEST_F(LentRowsTest, ACellThatCannotBeResolvedFailsTheLease) {
  const auto other = std::make_shared<LocalBuffers>();
  start(Opened(other));
  const auto reply = lease();
  reply_with({cell_of(kLarge)});
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  EXPECT_EQ(reply.status().message(), "a leased row: it was not lent");
  ASSERT_EQ(stream_->nacks.size(), 1U) << "another worker may have it at once";
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLeft);
  EXPECT_EQ(stream_->nacks[0].consumer, "reward-0");
  EXPECT_EQ(stream_->nacks[0].rows.size(), 1U);
  const auto next = lease();
  reply_with({cell_of(kLarge)});
  EXPECT_TRUE(next.ok()) << "later rows are sent";
  EXPECT_EQ(buffers_->lends, 1);
  EXPECT_THAT(remote_->log(), ElementsAre(HasSubstr("rows are sent in messages: a leased row")));
}

TEST_F(LentRowsTest, AProcessThatCannotOpenTheMemoryGetsMessages) {
  start(Opened(Status(Errc::kUnavailable, "nothing listens")));
  const auto reply = lease();
  reply_with({cell_of(kLarge)});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().rows[0].columns[0].value.size_bytes(), kLarge);
  EXPECT_EQ(buffers_->lends, 0);
  EXPECT_THAT(remote_->log(), ElementsAre(HasSubstr("rows are sent in messages: nothing listens")));
}

// A part of a buffer begins anywhere, and columns are read as numbers.
TEST_F(LentRowsTest, ACellIsAlignedForEveryType) {
  const Buffer part = cell_of(kLarge + 1).slice(1, kLarge, DType::kU8);
  const auto reply = lease();
  reply_with({part});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  const auto bytes = reply.value().rows[0].columns[0].value.bytes();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::max_align_t), 0U);
  EXPECT_TRUE(std::ranges::equal(bytes, part.bytes()));
}

}  // namespace
}  // namespace tidemill::test
