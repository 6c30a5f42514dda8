// SPDX-License-Identifier: Apache-2.0
// The contract of actors/remote/segment_buffers.hpp, over real segments: with a server and readers
// in one process, and with a reader that is killed.
#include "actors/remote/segment_buffers.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/remote_serving.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/transport/segment_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::SegmentCopies;
using engines::Snapshot;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using transport::SegmentPool;
using transport::SegmentReader;
using transport::SegmentServer;

constexpr std::size_t kLargeBytes = 200'000;  // more than a shared segment of `small_pool`

Tensor numbers(std::size_t count, float first) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = first + static_cast<float>(i);
  }
  return {DType::kF32,
          {static_cast<std::int64_t>(count)},
          Buffer::adopt(std::move(values), DType::kF32)};
}

// Names what a message would: the identities of tensors, without their bytes.
TensorMap named(const TensorMap& tensors) {
  TensorMap names = tensors;
  for (auto& [name, tensor] : names) {
    tensor.data = Buffer::named(tensor.data.identity());
  }
  return names;
}

// A pool and its server, in the process of the test.
struct Segments {
  explicit Segments(std::uint64_t max_lent_bytes = 8 << 20) : max_lent(max_lent_bytes) {
    transport::SegmentServerOptions options;
    options.path = directory.path() / "segments";
    server = SegmentServer::listen(pool, options).value();
  }

  std::shared_ptr<actors::BufferLender> add_reader(std::uint32_t number) {
    EXPECT_TRUE(pool.add_reader({number, transport::token_of(number), max_lent}).ok());
    return actors::make_segment_lender(copies, number);
  }
  std::shared_ptr<SegmentReader> connect(std::uint32_t number) const {
    transport::SegmentReaderOptions options;
    options.path = directory.path() / "segments";
    options.reader = number;
    options.token = transport::token_of(number);
    return SegmentReader::connect(options).value();
  }

  std::uint64_t max_lent;
  TemporaryDirectory directory;
  SegmentPool pool{transport::small_pool()};
  std::shared_ptr<SegmentCopies> copies = std::make_shared<SegmentCopies>(pool);
  std::unique_ptr<SegmentServer> server;
};

// -- lender and resolver --------------------------------------------------------------------------

TEST(SegmentBuffers, TensorsArriveWithTheirBytesAndWithoutAnotherCopy) {
  Segments segments;
  const auto lender = segments.add_reader(1);
  const auto resolver = actors::make_segment_resolver(segments.connect(1));
  const TensorMap tensors{{"a", numbers(50'000, 1.0F)},
                          {"b", numbers(3, 7.0F)},
                          {"none", {DType::kF32, {0, 4}, Buffer()}}};
  {
    const TensorMap lent = actors::lend(*lender, tensors).value();
    TensorMap read = named(lent);
    ASSERT_TRUE(actors::resolve(*resolver, read).ok());
    EXPECT_EQ(digest_tensors(read), digest_tensors(tensors));
    EXPECT_EQ(transport::mapped_inode(read.at("a").data.bytes().data()),
              transport::mapped_inode(lent.at("a").data.bytes().data()))
        << "the same pages";
    EXPECT_NE(read.at("a").data.bytes().data(), lent.at("a").data.bytes().data());
  }
  EXPECT_TRUE(transport::wait_until_empty(segments.pool, transport::small_pool().max_bytes));
}

TEST(SegmentBuffers, ABufferIsCopiedOnceForAllReadersAndNotAtAllInThePool) {
  Segments segments;
  const auto first = segments.add_reader(1);
  const auto second = segments.add_reader(2);
  const Buffer in_pool = transport::patterned(segments.pool, 1000, 3).value();
  const TensorMap tensors{{"a", numbers(100, 1.0F)}, {"p", {DType::kU8, {1000}, in_pool}}};
  std::optional<TensorMap> lent = actors::lend(*first, tensors).value();
  const TensorMap again = actors::lend(*second, tensors).value();
  EXPECT_EQ(segments.copies->num_copied(), 1U);
  EXPECT_EQ(again.at("a").data.identity(), lent->at("a").data.identity());
  EXPECT_EQ(again.at("p").data.identity(), in_pool.identity());
  lent.reset();
  static_cast<void>(actors::lend(*first, tensors).value());
  EXPECT_EQ(segments.copies->num_copied(), 1U) << "the other result keeps the copy";
}

TEST(SegmentBuffers, ACopyEndsWithItsLastHolder) {
  Segments segments;
  const auto lender = segments.add_reader(1);
  const TensorMap tensors{{"a", numbers(100, 1.0F)}};
  for (std::uint64_t round = 1; round <= 200; ++round) {
    const TensorMap lent = actors::lend(*lender, tensors).value();
    actors::take_back(*lender, lent);
    EXPECT_EQ(segments.copies->num_copied(), round);
  }
  EXPECT_EQ(segments.pool.use().used_bytes, 0U);
}

TEST(SegmentBuffers, ALendThatFailsLendsNothing) {
  Segments segments(/*max_lent_bytes=*/300'000);
  const auto lender = segments.add_reader(1);
  const TensorMap tensors{{"a", numbers(kLargeBytes / 4, 1.0F)},
                          {"b", numbers(kLargeBytes / 4, 2.0F)}};
  const Status full = actors::lend(*lender, tensors).status();
  EXPECT_EQ(full.code(), Errc::kResourceExhausted);
  EXPECT_THAT(full.message(), StartsWith("tensor b: 200000 bytes of shared memory: the reader "));
  EXPECT_EQ(segments.pool.lent_bytes(1), 0U);
  EXPECT_EQ(segments.pool.use().used_bytes, 0U) << "no copy is left";
  const Status large = actors::lend(*lender, {{"a", numbers(100'000, 1.0F)}}).status();
  EXPECT_EQ(large.code(), Errc::kInvalidArgument) << "the reader never may";
  EXPECT_EQ(actors::lend(*actors::make_segment_lender(segments.copies, 9), tensors).status().code(),
            Errc::kNotFound);
}

TEST(SegmentBuffers, AFullPoolIsAnErrorThatNamesTheTensor) {
  Segments segments;
  const auto lender = segments.add_reader(1);
  const Status full = actors::lend(*lender, {{"a", numbers(3 << 20, 1.0F)}}).status();
  EXPECT_EQ(full.code(), Errc::kResourceExhausted);
  EXPECT_THAT(full.message(), StartsWith("tensor a: shared memory: "));
}

TEST(SegmentBuffers, WhatWasNotLentCannotBeResolvedAndTheRestIsUsed) {
  Segments segments;
  const auto lender = segments.add_reader(1);
  const auto resolver = actors::make_segment_resolver(segments.connect(1));
  TensorMap read =
      named(actors::lend(*lender, {{"a", numbers(10, 1.0F)}, {"c", numbers(10, 2.0F)}}).value());
  read["b"] = {DType::kU8, {4}, Buffer::named({99, 1, 0, 0, 4, DType::kU8})};
  const Status status = actors::resolve(*resolver, read);
  EXPECT_EQ(status.code(), Errc::kNotFound);
  EXPECT_EQ(status.message(), "tensor b: 4 bytes of shared memory: not lent to this process");
  EXPECT_TRUE(read.at("c").data.resolved());
  read.clear();
  EXPECT_TRUE(transport::wait_until_empty(segments.pool, transport::small_pool().max_bytes));
}

// Engines read the elements of a tensor in place.
TEST(SegmentBuffers, BytesThatAreNotAlignedAreRefused) {
  Segments segments;
  const auto lender = segments.add_reader(1);
  const auto resolver = actors::make_segment_resolver(segments.connect(1));
  const Buffer bytes = transport::patterned(segments.pool, 64, 1).value();
  const auto resolved = [&](std::size_t offset, std::size_t length, DType dtype,
                            std::int64_t count) {
    TensorMap read =
        named(actors::lend(*lender, {{"w", {dtype, {count}, bytes.slice(offset, length, dtype)}}})
                  .value());
    return actors::resolve(*resolver, read);
  };
  EXPECT_TRUE(resolved(8, 16, DType::kF32, 4).ok());
  EXPECT_TRUE(resolved(1, 3, DType::kU8, 3).ok());
  const Status status = resolved(2, 16, DType::kF32, 4);
  EXPECT_EQ(status.code(), Errc::kCorruptData);
  EXPECT_EQ(status.message(), "tensor w: the bytes are not aligned for F32");
  EXPECT_EQ(resolved(3, 34, DType::kBlockI8, 32).code(), Errc::kCorruptData);
}

// -- a reader that is killed ----------------------------------------------------------------------

TEST(SegmentBuffers, TheLoansOfAKilledReaderReturn) {
  TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "segments";
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();  // before the server starts its thread
  if (child == 0) {
    BufferIdentity identity;
    transport::SegmentReaderOptions options;
    options.path = path;
    options.reader = 1;
    options.token = transport::token_of(1);
    if (::read(pipe_ends[0], &identity, sizeof(identity)) != sizeof(identity)) {
      ::_exit(1);
    }
    const auto reader = SegmentReader::connect(options);
    const auto buffer = reader.value()->resolve(identity);
    ::kill(::getpid(), buffer.ok() ? SIGKILL : SIGTERM);
  }
  SegmentPool pool(transport::small_pool());
  transport::SegmentServerOptions options;
  options.path = path;
  const auto server = SegmentServer::listen(pool, options).value();
  ASSERT_TRUE(pool.add_reader({1, transport::token_of(1), 8 << 20}).ok());
  const auto lender =
      actors::make_segment_lender(std::make_shared<SegmentCopies>(pool), /*reader=*/1);
  {
    const TensorMap lent =
        actors::lend(*lender, {{"a", numbers(kLargeBytes / 4, 1.0F)}, {"b", numbers(5, 2.0F)}})
            .value();
    const BufferIdentity& identity = lent.at("a").data.identity();
    ASSERT_EQ(::write(pipe_ends[1], &identity, sizeof(identity)),
              static_cast<ssize_t>(sizeof(identity)));
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << "it has resolved the buffer";
  EXPECT_TRUE(transport::wait_until_empty(pool, transport::small_pool().max_bytes));
  const Status gone = actors::lend(*lender, {{"a", numbers(5, 1.0F)}}).status();
  EXPECT_EQ(gone.code(), Errc::kUnavailable);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

// -- a device behind a gate -----------------------------------------------------------------------

class SegmentServingTest : public ActorTest {
protected:
  void SetUp() override {
    for (std::uint32_t number = 1; number <= 2; ++number) {
      Remote& remote = remotes_[number - 1];
      RemoteServingOptions options;
      options.name = "device-" + std::to_string(number);
      options.lender = segments_.add_reader(number);
      remote.reader = segments_.connect(number);
      options.resolver = actors::make_segment_resolver(remote.reader);
      remote.serving.emplace(system(), keep(spawn_fake_device(system(), remote.device)), port(),
                             options);
    }
  }
  void TearDown() override {
    for (Remote& remote : remotes_) {
      remote.serving->stop();
      remote.device->loads.clear();
    }
    ActorTest::TearDown();
  }
  Snapshot snapshot(std::uint64_t step) {
    Snapshot made;
    made.version.step = step;
    made.base["heap"] = numbers(kLargeBytes / 4, static_cast<float>(step));
    made.base["pool"] = {
        DType::kU8, {kLargeBytes}, transport::patterned(segments_.pool, kLargeBytes, step).value()};
    made.base_digest = digest_tensors(made.base);
    return made;
  }
  Reply<PolicyVersion> load(std::size_t device, const Snapshot& weights) {
    auto reply = ask<PolicyVersion>(remotes_[device].serving->serving(), atom::load_v, weights);
    settle();
    return reply;
  }
  void settle() {
    for (int i = 0; i < 4; ++i) {
      advance(Duration{0});
    }
  }
  // Accepts the weights as an engine does: only if they have their digest.
  Status accept(std::size_t device) {
    auto pending = take(remotes_[device].device->loads);
    const bool same = digest_tensors(pending.request.base) == pending.request.base_digest;
    remotes_[device].held = pending.request;
    pending.reply(pending.request.version);
    settle();
    return same ? Status() : corrupt_data("digest");
  }

  struct Remote {
    std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
    std::shared_ptr<SegmentReader> reader;
    std::optional<RemoteServing> serving;
    Snapshot held;  // what the engine serves
  };
  Segments segments_;
  Remote remotes_[2];
};

TEST_F(SegmentServingTest, TwoDevicesLoadOneCopyOfEachSnapshot) {
  for (std::uint64_t step = 1; step <= 6; ++step) {
    const Snapshot weights = snapshot(step);
    for (std::size_t device = 0; device < 2; ++device) {
      const auto reply = load(device, weights);
      EXPECT_TRUE(accept(device).ok());
      ASSERT_TRUE(reply.ok()) << reply.status().to_string();
      EXPECT_EQ(reply.value().step, step);
      EXPECT_NE(transport::mapped_inode(remotes_[device].held.base.at("pool").data.bytes().data()),
                0U);
    }
    EXPECT_EQ(segments_.copies->num_copied(), step) << "only what was not in the pool";
  }
}

TEST_F(SegmentServingTest, WeightsThatADeviceDropsFreeTheirSegments) {
  load(0, snapshot(1));
  ASSERT_TRUE(accept(0).ok());
  EXPECT_GE(segments_.pool.lent_bytes(1), 2 * kLargeBytes);
  remotes_[0].held = {};
  remotes_[0].serving->lose("the end");  // the proxy keeps the copies until then
  settle();
  EXPECT_TRUE(transport::wait_until_empty(segments_.pool, transport::small_pool().max_bytes));
}

TEST_F(SegmentServingTest, AReaderThatIsLostFailsTheNextLoadOfItsDeviceOnly) {
  ASSERT_TRUE(load(0, snapshot(1)).count() == 0 && accept(0).ok());
  segments_.pool.drop_reader(1);
  const auto lost = load(0, snapshot(2));
  EXPECT_EQ(lost.status().code(), Errc::kNotFound);
  EXPECT_THAT(lost.status().message(), MatchesRegex("device-1: tensor [a-z_.0-9]*: [0-9]+ bytes of "
                                                    "shared memory: the process has ended"));
  const auto other = load(1, snapshot(2));
  EXPECT_TRUE(accept(1).ok());
  EXPECT_TRUE(other.ok());
}

}  // namespace
}  // namespace tidemill::test
