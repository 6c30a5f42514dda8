// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_session.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint16_t kKind = 5;
constexpr TimePoint kStart{seconds(1000)};

PeerSessionOptions options_of(std::uint32_t self, std::uint32_t peer) {
  PeerSessionOptions options;
  options.run = 77;
  options.incarnation = 2;
  options.self = self;
  options.peer = peer;
  options.max_body_bytes = 1000;
  options.send_bytes = 4000;
  options.receive_bytes = 3000;
  return options;
}

Buffer body_of(std::uint64_t value, std::size_t size = sizeof(std::uint64_t)) {
  std::vector<std::byte> bytes(std::max(size, sizeof(value)));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return Buffer::adopt(std::move(bytes), DType::kU8);
}

std::uint64_t value_of(const Buffer& body) {
  std::uint64_t value = 0;
  std::memcpy(&value, body.bytes().data(), sizeof(value));
  return value;
}

OutgoingMessage message_of(std::uint64_t value, std::size_t size = sizeof(std::uint64_t)) {
  OutgoingMessage message;
  message.kind = kKind;
  message.body = body_of(value, size);
  return message;
}

// Two sessions with a connection that loses nothing.
class PeerSessionTest : public ::testing::Test {
protected:
  void connect() {
    a_.connect(now_);
    b_.connect(now_);
  }

  // Passes frames on until neither side has any.
  void exchange() {
    for (bool moved = true; moved;) {
      moved = pass(a_, b_);
      moved = pass(b_, a_) || moved;
    }
  }

  bool pass(PeerSession& from, PeerSession& to) {
    const std::vector<Envelope> frames = from.take_frames(now_);
    for (const Envelope& frame : frames) {
      const Status status = to.receive(frame, now_);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    return !frames.empty();
  }

  void wait(Duration time) {
    now_ += time;
    a_.advance(now_);
    b_.advance(now_);
  }

  static std::vector<std::uint64_t> values(const std::vector<IncomingMessage>& messages) {
    std::vector<std::uint64_t> values;
    for (const IncomingMessage& message : messages) {
      values.push_back(value_of(message.body));
    }
    return values;
  }

  static std::uint64_t sent(PeerSession& session, const OutgoingMessage& message) {
    const Result<std::uint64_t> number = session.send(message);
    EXPECT_TRUE(number.ok()) << number.status().to_string();
    return number.ok() ? number.value() : 0;
  }

  TimePoint now_ = kStart;
  PeerSession a_{options_of(1, 2), kStart};
  PeerSession b_{options_of(2, 1), kStart};
};

TEST_F(PeerSessionTest, DeliversInOrderAfterTheConnectionIsMade) {
  EXPECT_EQ(sent(a_, message_of(10)), 1U);
  EXPECT_EQ(sent(a_, message_of(11)), 2U);
  EXPECT_TRUE(a_.take_frames(now_).empty());
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{10, 11}));
  EXPECT_TRUE(b_.take_messages().empty());
  EXPECT_EQ(a_.unacknowledged_bytes(), 0U);
}

TEST_F(PeerSessionTest, SendsAgainWhatALostFrameHeld) {
  connect();
  exchange();
  sent(a_, message_of(1));
  sent(a_, message_of(2));
  std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_EQ(frames.size(), 2U);
  ASSERT_TRUE(b_.receive(frames[1], now_).ok());  // the first one is lost
  EXPECT_TRUE(b_.take_messages().empty());
  exchange();
  EXPECT_TRUE(b_.take_messages().empty());
  wait(milliseconds(500));
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(a_.counts().sent, 2U);
  EXPECT_EQ(a_.counts().resent, 2U);
  EXPECT_EQ(b_.counts().ignored, 1U);
}

TEST_F(PeerSessionTest, SendsAgainOnANewConnectionAndDeliversOnce) {
  connect();
  exchange();
  sent(a_, message_of(1));
  sent(a_, message_of(2));
  const std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_TRUE(b_.receive(frames[0], now_).ok());
  a_.disconnect(now_);
  b_.disconnect(now_);
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(b_.counts().taken, 2U);
  EXPECT_EQ(b_.counts().ignored, 1U);
  EXPECT_EQ(a_.counts().resent, 2U);
  ASSERT_TRUE(b_.receive(frames[1], now_).ok());  // it was not lost, but late
  EXPECT_TRUE(b_.take_messages().empty());
}

TEST_F(PeerSessionTest, ARequestGetsItsAnswer) {
  connect();
  OutgoingMessage request = message_of(7);
  request.expires = now_ + seconds(10);
  const std::uint64_t number = sent(a_, request);
  exchange();
  const std::vector<IncomingMessage> requests = b_.take_messages();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].expires, now_ + seconds(10));
  OutgoingMessage answer = message_of(8);
  answer.request = requests[0].number;
  sent(b_, answer);
  exchange();
  const std::vector<IncomingMessage> answers = a_.take_messages();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].request, number);
  wait(seconds(11));
  a_.end("the test is over");
  EXPECT_TRUE(a_.take_failures().empty());
}

TEST_F(PeerSessionTest, ARequestFailsAtItsDeadlineAndALateAnswerIsDropped) {
  connect();
  OutgoingMessage request = message_of(7);
  request.expires = now_ + milliseconds(100);
  const std::uint64_t number = sent(a_, request);
  exchange();
  const std::vector<IncomingMessage> requests = b_.take_messages();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(a_.next_event(), now_ + milliseconds(100));
  wait(milliseconds(100));
  const std::vector<FailedRequest> failures = a_.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].number, number);
  EXPECT_EQ(failures[0].reason.to_string(), "timeout: peer 2: no answer before the deadline");
  OutgoingMessage answer = message_of(8);
  answer.request = number;
  sent(b_, answer);
  exchange();
  EXPECT_TRUE(a_.take_messages().empty());
  EXPECT_TRUE(a_.take_failures().empty());
  EXPECT_EQ(a_.counts().late_answers, 1U);
}

TEST_F(PeerSessionTest, ASenderStopsAtTheCreditUntilTheReceiverReleases) {
  connect();
  exchange();
  // Each message uses 564 of 3,000 bytes; 4,000 may wait for an acknowledgement.
  for (std::uint64_t i = 0; i < 7; ++i) {
    sent(a_, message_of(i, 500));
  }
  exchange();
  std::vector<IncomingMessage> messages = b_.take_messages();
  EXPECT_EQ(values(messages), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
  wait(seconds(1));
  exchange();
  EXPECT_TRUE(b_.take_messages().empty());
  b_.release(messages[0]);
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{5}));
}

TEST_F(PeerSessionTest, AnOldFrameTakesNoCreditBack) {
  connect();
  const std::vector<Envelope> old = b_.take_frames(now_);
  ASSERT_EQ(old.size(), 1U);
  ASSERT_TRUE(a_.receive(old[0], now_).ok());
  for (std::uint64_t i = 0; i < 3; ++i) {
    sent(a_, message_of(i, 900));
  }
  exchange();
  for (const IncomingMessage& message : b_.take_messages()) {
    b_.release(message);
  }
  exchange();
  ASSERT_TRUE(a_.receive(old[0], now_).ok());
  sent(a_, message_of(3, 900));
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{3}));
}

TEST_F(PeerSessionTest, RefusesWhatWouldExceedTheLimitOfUnacknowledgedBytes) {
  for (std::uint64_t i = 0; i < 3; ++i) {
    sent(a_, message_of(i, 1000));
  }
  const Status full = a_.send(message_of(3, 1000)).status();
  EXPECT_EQ(full.to_string(),
            "resource_exhausted: peer 2: 3192 bytes are not acknowledged, at most 4000 may be");
  const Status large = a_.send(message_of(3, 1001)).status();
  EXPECT_EQ(large.to_string(),
            "invalid_argument: peer 2: a body of 1001 bytes is too large for one message (at most "
            "1000)");
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(sent(a_, message_of(3, 1000)), 4U);  // a refused message uses no number
}

TEST_F(PeerSessionTest, HeartbeatsKeepASilentConnection) {
  connect();
  for (int i = 0; i < 100; ++i) {
    exchange();
    EXPECT_EQ(a_.next_event(), now_ + milliseconds(250));
    wait(milliseconds(250));
  }
  EXPECT_EQ(a_.state(), PeerSession::State::kConnected);
  EXPECT_EQ(b_.state(), PeerSession::State::kConnected);
}

TEST_F(PeerSessionTest, SilenceBreaksTheConnectionAndEndsTheSession) {
  connect();
  exchange();
  OutgoingMessage request = message_of(7);
  request.expires = now_ + seconds(100);
  const std::uint64_t number = sent(a_, request);
  wait(seconds(2) - milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kConnected);
  wait(milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kDisconnected);
  wait(seconds(30) - milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kDisconnected);
  EXPECT_TRUE(a_.take_failures().empty());
  wait(milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kEnded);
  const std::vector<FailedRequest> failures = a_.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].number, number);
  EXPECT_EQ(failures[0].reason.to_string(), "unavailable: peer 2: no connection for 30 s");
  EXPECT_EQ(a_.send(message_of(1)).status().to_string(),
            "unavailable: peer 2: no connection for 30 s");
  a_.connect(now_);
  EXPECT_EQ(a_.state(), PeerSession::State::kEnded);
  EXPECT_EQ(a_.next_event(), TimePoint::max());
}

TEST_F(PeerSessionTest, FramesThatBreakTheRulesAreRefusedAndDoNotCount) {
  connect();
  exchange();
  sent(a_, message_of(1));
  const std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_EQ(frames.size(), 1U);
  const auto refusal = [&](auto change) {
    Envelope frame = frames[0];
    change(frame);
    return b_.receive(frame, now_).to_string();
  };
  EXPECT_EQ(refusal([](Envelope& f) { f.run = 78; }),
            "invalid_argument: peer 1: a frame of another run");
  EXPECT_EQ(refusal([](Envelope& f) { f.incarnation = 1; }),
            "stale_version: peer 1: a frame of incarnation 1, this process is in incarnation 2");
  EXPECT_EQ(refusal([](Envelope& f) { f.sender = 3; }),
            "invalid_argument: peer 1: a frame that process 3 has sent");
  EXPECT_EQ(refusal([](Envelope& f) { f.acknowledged = 1; }),
            "invalid_argument: peer 1: message 1 is acknowledged, but only 0 were sent");
  EXPECT_EQ(refusal([](Envelope& f) { f.kind = 0; }),
            "invalid_argument: peer 1: a frame of kind 0 has number 1");
  EXPECT_EQ(refusal([](Envelope& f) { f.body = body_of(1, 2937); }),
            "resource_exhausted: peer 1: a message of 2937 bytes exceeds the credit of 3000");
  EXPECT_TRUE(b_.take_messages().empty());
  EXPECT_TRUE(b_.receive(frames[0], now_).ok());
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1}));
}

// Two sessions over a network that loses, repeats, delays, reorders and damages frames, and whose
// connections break. Both sides send messages and requests, and release what they get after a
// while.
class FaultyNetwork {
public:
  explicit FaultyNetwork(std::uint64_t seed) : random_(seed) {
    loss_ = 0.3 * random_.uniform();
    repeat_ = 0.3 * random_.uniform();
    damage_ = random_.below(2) == 0 ? 0.0 : 0.02 * random_.uniform();
    break_ = random_.below(2) == 0 ? 0.0 : 0.02 * random_.uniform();
  }

  // Runs until both sides have sent `count` messages and everything has arrived.
  void run(std::uint64_t count) {
    while (!done(count)) {
      ASSERT_LT(now_, kStart + seconds(3600)) << "the sessions make no progress";
      if (!connected_ && now_ >= connect_at_) {
        connected_ = true;
        for (Side& side : sides_) {
          side.session.connect(now_);
        }
      }
      for (Side& side : sides_) {
        step(side, count);
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
      deliver();
      if (random_.uniform() < break_) {
        disconnect();
      }
      now_ += milliseconds(1 + random_.below(50));
    }
    for (const Side& side : sides_) {
      EXPECT_EQ(side.answered + side.failed, side.requests);
      EXPECT_EQ(side.session.counts().taken, side.session.counts().late_answers + side.taken);
    }
  }

  std::uint64_t num_resent() const {
    return sides_[0].session.counts().resent + sides_[1].session.counts().resent;
  }
  std::uint64_t num_failed() const { return sides_[0].failed + sides_[1].failed; }
  std::uint64_t num_damaged() const { return damaged_; }

private:
  struct Side {
    Side(std::uint32_t self, std::uint32_t peer) : session(options_of(self, peer), kStart) {}
    PeerSession session;
    std::uint64_t sent = 0;   // messages that are no answers
    std::uint64_t taken = 0;  // messages of all kinds
    std::uint64_t next = 0;   // the value of the next message from the peer that is no answer
    std::uint64_t requests = 0;
    std::uint64_t answered = 0;
    std::uint64_t failed = 0;
    std::set<std::uint64_t> open;          // numbers of requests
    std::vector<OutgoingMessage> answers;  // that wait for room
    std::vector<IncomingMessage> held;     // not released
  };
  struct Flying {
    TimePoint arrives;
    std::size_t to;
    std::vector<std::byte> frame;
  };

  void step(Side& side, std::uint64_t count) {
    side.session.advance(now_);
    while (!side.answers.empty() && side.session.send(side.answers.front()).ok()) {
      side.answers.erase(side.answers.begin());
    }
    if (side.sent < count && random_.below(3) == 0) {
      OutgoingMessage message = message_of(side.sent, random_.below(1000));
      const bool request = random_.below(3) == 0;
      if (request) {
        message.expires = now_ + milliseconds(random_.below(3000));
      }
      const Result<std::uint64_t> number = side.session.send(message);
      if (number.ok()) {
        ++side.sent;
        if (request) {
          ++side.requests;
          side.open.insert(number.value());
        }
      } else {
        ASSERT_EQ(number.status().code(), Errc::kResourceExhausted);
      }
    }
    for (const FailedRequest& failure : side.session.take_failures()) {
      ASSERT_EQ(side.open.erase(failure.number), 1U) << "a request has failed twice";
      ++side.failed;
    }
    for (IncomingMessage& message : side.session.take_messages()) {
      take(side, std::move(message));
    }
    while (!side.held.empty() && random_.below(4) == 0) {
      side.session.release(side.held.front());
      side.held.erase(side.held.begin());
    }
    send_frames(side);
    if (side.session.state() == PeerSession::State::kDisconnected && connected_) {
      disconnect();
    }
  }

  void take(Side& side, IncomingMessage message) {
    ++side.taken;
    std::uint64_t held = 0;
    for (const IncomingMessage& other : side.held) {
      held += other.body.size_bytes() + kMessageOverheadBytes;
    }
    ASSERT_LE(held + message.body.size_bytes() + kMessageOverheadBytes, 3000U) << "over the credit";
    if (message.request != 0) {
      ASSERT_EQ(side.open.erase(message.request), 1U) << "a request was answered twice";
      ++side.answered;
    } else {
      ASSERT_EQ(value_of(message.body), side.next) << "lost, repeated or out of order";
      ++side.next;
      if (message.expires.has_value()) {
        OutgoingMessage answer = message_of(0);
        answer.request = message.number;
        side.answers.push_back(std::move(answer));
      }
    }
    side.held.push_back(std::move(message));
  }

  void send_frames(Side& side) {
    const std::size_t to = &side == &sides_[0] ? 1 : 0;
    for (const Envelope& envelope : side.session.take_frames(now_)) {
      Result<std::vector<std::byte>> frame = write_envelope(envelope);
      ASSERT_TRUE(frame.ok());
      const int copies = random_.uniform() < loss_ ? 0 : random_.uniform() < repeat_ ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        Flying flying{now_ + milliseconds(random_.below(200)), to, frame.value()};
        if (random_.uniform() < damage_) {
          ++damaged_;
          flying.frame[random_.below(flying.frame.size())] ^= std::byte{16};
        }
        flying_.push_back(std::move(flying));
      }
    }
  }

  void deliver() {
    for (std::size_t i = 0; i < flying_.size() && connected_;) {
      if (flying_[i].arrives > now_) {
        ++i;
        continue;
      }
      const Flying flying = std::move(flying_[i]);
      flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(i));
      const Result<Envelope> envelope = read_envelope(Buffer::copy_of(flying.frame));
      if (!envelope.ok()) {
        disconnect();  // a damaged frame costs the connection
        return;
      }
      const Status status = sides_[flying.to].session.receive(envelope.value(), now_);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }

  void disconnect() {
    if (connected_) {
      connected_ = false;
      connect_at_ = now_ + milliseconds(random_.below(500));
      flying_.clear();
      for (Side& side : sides_) {
        side.session.disconnect(now_);
      }
    }
  }

  bool done(std::uint64_t count) const {
    return std::ranges::all_of(sides_, [&](const Side& side) {
      return side.sent == count && side.next == count && side.open.empty() &&
             side.session.unacknowledged_bytes() == 0 && side.answers.empty();
    });
  }

  RandomStream random_;
  double loss_ = 0.0;
  double repeat_ = 0.0;
  double damage_ = 0.0;
  double break_ = 0.0;
  std::array<Side, 2> sides_{Side(1, 2), Side(2, 1)};
  std::vector<Flying> flying_;
  bool connected_ = false;
  TimePoint connect_at_ = kStart;
  TimePoint now_ = kStart;
  std::uint64_t damaged_ = 0;
};

TEST(PeerSessionFaults, NothingIsLostRepeatedOrReordered) {
  std::uint64_t resent = 0;
  std::uint64_t failed = 0;
  std::uint64_t damaged = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultyNetwork network(seed);
    network.run(100);
    ASSERT_FALSE(HasFailure());
    resent += network.num_resent();
    failed += network.num_failed();
    damaged += network.num_damaged();
  }
  // The faults have happened.
  EXPECT_GT(resent, 1000U);
  EXPECT_GT(failed, 100U);
  EXPECT_GT(damaged, 100U);
}

}  // namespace
}  // namespace tidemill::transport
