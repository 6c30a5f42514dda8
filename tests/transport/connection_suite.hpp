// SPDX-License-Identifier: Apache-2.0
// The conformance suite of `Connection`. Each backend runs it: it defines a rig and instantiates
// the suite with it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/transport/recording_listener.hpp"
#include "transport/connection.hpp"
#include "transport/envelope.hpp"

namespace tidemill::transport {

/// Makes connections of a backend and drives them.
class ConnectionRig {
public:
  ConnectionRig() = default;
  ConnectionRig(const ConnectionRig&) = delete;
  ConnectionRig& operator=(const ConnectionRig&) = delete;
  virtual ~ConnectionRig() = default;

  using Pair = std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>>;
  /// Makes a connection, whose sides are not started.
  [[nodiscard]] virtual Pair connect() = 0;
  /// Lets the connections work until `done` returns true. Returns false if that takes too long.
  [[nodiscard]] virtual bool run_until(const std::function<bool()>& done) = 0;
  /// Lets the connections work until nothing is on the way.
  virtual void settle() = 0;
};

/// The suite. The parameter makes a rig.
class ConnectionSuite
    : public ::testing::TestWithParam<std::function<std::unique_ptr<ConnectionRig>()>> {
protected:
  void SetUp() override {
    rig_ = GetParam()();
    std::tie(a_, b_) = rig_->connect();
    a_->start(at_a_);
    b_->start(at_b_);
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
  }

  static Buffer frame_of(std::uint64_t seed, std::size_t size) {
    RandomStream random(seed);
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random.bits());
    }
    return Buffer::adopt(std::move(bytes), DType::kU8);
  }
  static void expect_equal(const Buffer& frame, const Buffer& expected) {
    EXPECT_TRUE(std::ranges::equal(frame.bytes(), expected.bytes()));
  }
  static Status send(Connection& side, const Buffer& frame) {
    return calling([&] { return side.send(frame); });
  }
  Status send(const Buffer& frame) { return send(*a_, frame); }
  static void close(Connection& side) {
    calling([&] { side.close(); });
  }

  std::unique_ptr<ConnectionRig> rig_;
  RecordingListener at_a_;
  RecordingListener at_b_;
  std::unique_ptr<Connection> a_;
  std::unique_ptr<Connection> b_;
};

TEST_P(ConnectionSuite, CarriesFramesInOrderAndUnchanged) {
  constexpr std::size_t kCount = 500;
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(send(frame_of(i, i * 7 % 1500)).ok());  // some are empty
  }
  ASSERT_TRUE(rig_->run_until([&] { return at_b_.frames().size() == kCount; }));
  for (std::size_t i = 0; i < kCount; ++i) {
    expect_equal(at_b_.frames()[i], frame_of(i, i * 7 % 1500));
  }
  EXPECT_TRUE(at_a_.frames().empty());
}

TEST_P(ConnectionSuite, CarriesFramesBothWaysAtOnce) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(send(frame_of(i, 100)).ok());
    ASSERT_TRUE(send(*b_, frame_of(1000 + i, 100)).ok());
  }
  ASSERT_TRUE(rig_->run_until(
      [&] { return at_a_.frames().size() == 100 && at_b_.frames().size() == 100; }));
  expect_equal(at_a_.frames()[99], frame_of(1099, 100));
  expect_equal(at_b_.frames()[99], frame_of(99, 100));
}

TEST_P(ConnectionSuite, CarriesTheLargestFrameAndRefusesALargerOne) {
  const Buffer largest = frame_of(1, kMaxEnvelopeBytes);
  ASSERT_TRUE(send(largest).ok());
  const Status status = send(frame_of(1, kMaxEnvelopeBytes + 1));
  EXPECT_EQ(status.to_string(),
            "invalid_argument: connection: a frame of 16777217 bytes is too large (at most "
            "16777216)");
  ASSERT_TRUE(rig_->run_until([&] { return at_b_.frames().size() == 1; }));
  expect_equal(at_b_.frames()[0], largest);
}

TEST_P(ConnectionSuite, AListenerMaySend) {
  at_b_.set_on_frame([&](const Buffer& frame) { EXPECT_TRUE(send(*b_, frame).ok()); });
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(send(frame_of(i, 10)).ok());
  }
  ASSERT_TRUE(rig_->run_until([&] { return at_a_.frames().size() == 100; }));
  expect_equal(at_a_.frames()[99], frame_of(99, 10));
}

TEST_P(ConnectionSuite, ClosingTellsBothSidesOnce) {
  close(*a_);
  close(*a_);
  close(*b_);
  ASSERT_TRUE(rig_->run_until([&] { return at_a_.closed() > 0 && at_b_.closed() > 0; }));
  rig_->settle();
  EXPECT_EQ(at_a_.closed(), 1);
  EXPECT_EQ(at_b_.closed(), 1);
  EXPECT_EQ(at_a_.reason().code(), Errc::kUnavailable);
  EXPECT_EQ(at_b_.reason().code(), Errc::kUnavailable);
  EXPECT_EQ(send(frame_of(1, 1)).to_string(), "unavailable: connection: it is closed");
  EXPECT_EQ(send(*b_, frame_of(1, 1)).to_string(), "unavailable: connection: it is closed");
}

TEST_P(ConnectionSuite, AListenerMayClose) {
  RecordingListener at_c;
  RecordingListener at_d;
  auto [c, d] = rig_->connect();
  Connection& closing = *d;
  at_d.set_on_frame([&](const Buffer& /*frame*/) { close(closing); });
  c->start(at_c);
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(send(*c, frame_of(i, 10)).ok());
  }
  d->start(at_d);  // now, so that all frames were sent before the end
  ASSERT_TRUE(rig_->run_until([&] { return at_c.closed() > 0 && at_d.closed() > 0; }));
  rig_->settle();
  EXPECT_EQ(at_d.frames().size(), 1U);
  EXPECT_EQ(at_c.closed(), 1);
  EXPECT_EQ(at_d.closed(), 1);
}

TEST_P(ConnectionSuite, DestroyingASideTellsOnlyTheOther) {
  ASSERT_TRUE(send(*b_, frame_of(1, 10)).ok());
  calling([&] { a_.reset(); });
  ASSERT_TRUE(rig_->run_until([&] { return at_b_.closed() > 0; }));
  rig_->settle();
  EXPECT_EQ(at_b_.closed(), 1);
  EXPECT_EQ(at_a_.closed(), 0);
  EXPECT_EQ(send(*b_, frame_of(1, 1)).code(), Errc::kUnavailable);
}

TEST_P(ConnectionSuite, ConnectionsDoNotDisturbEachOther) {
  RecordingListener at_c;
  RecordingListener at_d;
  auto [c, d] = rig_->connect();
  c->start(at_c);
  d->start(at_d);
  ASSERT_TRUE(send(frame_of(1, 10)).ok());
  ASSERT_TRUE(send(*c, frame_of(2, 10)).ok());
  ASSERT_TRUE(
      rig_->run_until([&] { return at_b_.frames().size() == 1 && at_d.frames().size() == 1; }));
  close(*a_);
  ASSERT_TRUE(rig_->run_until([&] { return at_b_.closed() == 1; }));
  ASSERT_TRUE(send(*c, frame_of(3, 10)).ok());
  ASSERT_TRUE(rig_->run_until([&] { return at_d.frames().size() == 2; }));
  expect_equal(at_b_.frames()[0], frame_of(1, 10));
  expect_equal(at_d.frames()[0], frame_of(2, 10));
  expect_equal(at_d.frames()[1], frame_of(3, 10));
  EXPECT_EQ(at_d.closed(), 0);
}

TEST_P(ConnectionSuite, WhatHappensBeforeTheStartWaits) {
  RecordingListener at_c;
  RecordingListener at_d;
  auto [c, d] = rig_->connect();
  c->start(at_c);
  ASSERT_TRUE(send(*c, frame_of(1, 10)).ok());
  ASSERT_TRUE(send(*c, frame_of(2, 10)).ok());
  rig_->settle();
  d->start(at_d);
  ASSERT_TRUE(rig_->run_until([&] { return at_d.frames().size() == 2; }));
  expect_equal(at_d.frames()[0], frame_of(1, 10));
  expect_equal(at_d.frames()[1], frame_of(2, 10));
}

TEST_P(ConnectionSuite, ASideThatIsClosedBeforeItsStartLearnsOfIt) {
  RecordingListener at_d;
  auto [c, d] = rig_->connect();
  c.reset();
  rig_->settle();
  d->start(at_d);
  ASSERT_TRUE(rig_->run_until([&] { return at_d.closed() == 1; }));
  EXPECT_EQ(at_d.reason().code(), Errc::kUnavailable);
}

TEST_P(ConnectionSuite, ASideThatWasNotStartedCanBeDestroyed) {
  RecordingListener at_c;
  auto [c, d] = rig_->connect();
  c->start(at_c);
  d.reset();
  ASSERT_TRUE(rig_->run_until([&] { return at_c.closed() == 1; }));
}

}  // namespace tidemill::transport
