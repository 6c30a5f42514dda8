// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_session.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "transport/loopback/loopback_network.hpp"

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
  options.acknowledge_within = Duration::zero();
  options.max_body_bytes = 1000;
  options.send_bytes = 8000;
  options.receive_bytes = 5200;
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

OutgoingMessage request_of(std::uint64_t value, TimePoint expires) {
  OutgoingMessage request = message_of(value);
  request.expires = expires;
  return request;
}

OutgoingMessage reply_of(std::uint64_t value, std::uint64_t reply_to) {
  OutgoingMessage reply = message_of(value);
  reply.reply_to = reply_to;
  return reply;
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

// A connection loses no frame until it closes. If one is lost all the same, the connection is given
// up, even while heartbeats arrive.
// Sessions whose acknowledgements may wait.
class PatientSessionTest : public PeerSessionTest {
protected:
  static PeerSessionOptions patient(std::uint32_t self, std::uint32_t peer) {
    PeerSessionOptions options = options_of(self, peer);
    options.acknowledge_within = milliseconds(3);
    options.max_body_bytes = 10'000;
    options.send_bytes = 80'000;
    options.receive_bytes = 52'000;
    return options;
  }
  void SetUp() override {
    for (PeerSession* session : {&sender_, &receiver_}) {
      session->connect(now_);
    }
    ASSERT_TRUE(pass(sender_, receiver_));
    ASSERT_TRUE(pass(receiver_, sender_));
  }

  PeerSession sender_{patient(1, 2), kStart};
  PeerSession receiver_{patient(2, 1), kStart};
};

TEST_F(PatientSessionTest, AnAcknowledgementWaitsForAMessage) {
  const std::uint64_t number = sent(sender_, request_of(1, now_ + seconds(1)));
  ASSERT_TRUE(pass(sender_, receiver_));
  EXPECT_FALSE(pass(receiver_, sender_));
  EXPECT_EQ(receiver_.next_event(), now_ + milliseconds(3));
  sent(receiver_, reply_of(2, number));
  const std::vector<Envelope> frames = receiver_.take_frames(now_);
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0].acknowledged, 1U);
  ASSERT_TRUE(sender_.receive(frames[0], now_).ok());
  EXPECT_EQ(sender_.unacknowledged_bytes(), 0U);
  now_ += milliseconds(3);
  EXPECT_FALSE(pass(receiver_, sender_)) << "the peer knows everything";
}

TEST_F(PatientSessionTest, AnAcknowledgementGetsAFrameOfItsOwnInTime) {
  sent(sender_, message_of(1));
  ASSERT_TRUE(pass(sender_, receiver_));
  EXPECT_FALSE(pass(receiver_, sender_));
  now_ += milliseconds(2);
  sent(sender_, message_of(2));
  ASSERT_TRUE(pass(sender_, receiver_));
  EXPECT_FALSE(pass(receiver_, sender_));
  now_ += milliseconds(1);  // after the first message
  EXPECT_EQ(receiver_.next_event(), now_);
  ASSERT_TRUE(pass(receiver_, sender_));
  EXPECT_EQ(sender_.unacknowledged_bytes(), 0U);
  for (const IncomingMessage& message : receiver_.take_messages()) {
    receiver_.release(message);
  }
  EXPECT_FALSE(pass(receiver_, sender_)) << "credit waits too";
  now_ += milliseconds(3);
  EXPECT_TRUE(pass(receiver_, sender_));
}

TEST_F(PatientSessionTest, ALargePartOfTheCreditDoesNotWait) {
  sent(sender_, message_of(1, 7000));  // of 52,000 bytes of credit
  ASSERT_TRUE(pass(sender_, receiver_));
  EXPECT_TRUE(pass(receiver_, sender_));
}

TEST_F(PeerSessionTest, GivesUpAConnectionWithoutAcknowledgements) {
  connect();
  exchange();
  sent(a_, message_of(1));
  sent(a_, message_of(2));
  ASSERT_EQ(a_.take_frames(now_).size(), 2U);  // both are lost
  const TimePoint begin = now_;
  while (a_.state() == PeerSession::State::kConnected) {
    exchange();
    ASSERT_TRUE(b_.take_messages().empty());
    ASSERT_GT(a_.next_event(), now_);
    wait(std::min(a_.next_event(), b_.next_event()) - now_);
  }
  EXPECT_EQ(now_, begin + seconds(10));
  EXPECT_EQ(b_.state(), PeerSession::State::kConnected);
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(a_.counts().sent, 2U);
  EXPECT_EQ(a_.counts().resent, 2U);
  EXPECT_EQ(b_.counts().ignored, 0U);
}

TEST_F(PeerSessionTest, GivesUpAConnectionOnWhichAMessageIsMissing) {
  connect();
  exchange();
  sent(a_, message_of(1));
  sent(a_, message_of(2));
  const std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_EQ(frames.size(), 2U);
  ASSERT_TRUE(b_.receive(frames[1], now_).ok());  // the first one is lost
  EXPECT_EQ(b_.state(), PeerSession::State::kDisconnected);
  EXPECT_TRUE(b_.take_messages().empty());
  EXPECT_EQ(b_.counts().ignored, 1U);
  a_.disconnect("cut");
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(a_.counts().resent, 2U);
}

// Nothing is missing before a message that arrives twice.
TEST_F(PeerSessionTest, KeepsAConnectionOnWhichAMessageIsRepeated) {
  connect();
  exchange();
  sent(a_, message_of(1));
  const std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_TRUE(b_.receive(frames.at(0), now_).ok());
  ASSERT_TRUE(b_.receive(frames.at(0), now_).ok());
  EXPECT_EQ(b_.state(), PeerSession::State::kConnected);
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1}));
}

TEST_F(PeerSessionTest, SendsAgainOnANewConnectionAndDeliversOnce) {
  connect();
  exchange();
  sent(a_, message_of(1));
  sent(a_, message_of(2));
  const std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_TRUE(b_.receive(frames[0], now_).ok());
  a_.disconnect("cut");
  b_.disconnect("cut");
  sent(a_, message_of(3));
  EXPECT_TRUE(a_.take_frames(now_).empty());
  EXPECT_TRUE(b_.take_frames(now_).empty());
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(a_.unacknowledged_bytes(), 0U);
  EXPECT_EQ(b_.counts().taken, 3U);
  EXPECT_EQ(b_.counts().ignored, 1U);
  EXPECT_EQ(a_.counts().resent, 2U);
  ASSERT_TRUE(b_.receive(frames[1], now_).ok());  // it was not lost, but late
  EXPECT_TRUE(b_.take_messages().empty());
}

TEST_F(PeerSessionTest, ARequestGetsItsReply) {
  connect();
  const std::uint64_t number = sent(a_, request_of(7, now_ + seconds(10)));
  exchange();
  const std::vector<IncomingMessage> requests = b_.take_messages();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].expires, now_ + seconds(10));
  sent(b_, reply_of(8, requests[0].number));
  exchange();
  const std::vector<IncomingMessage> replies = a_.take_messages();
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].reply_to, number);
  wait(seconds(11));
  a_.end("the test is over");
  EXPECT_TRUE(a_.take_failures().empty());
}

TEST_F(PeerSessionTest, ARequestFailsAtItsDeadlineAndALateReplyIsNoResult) {
  connect();
  const std::uint64_t number = sent(a_, request_of(7, now_ + milliseconds(100)));
  exchange();
  const std::vector<IncomingMessage> requests = b_.take_messages();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(a_.next_event(), now_ + milliseconds(100));
  wait(milliseconds(100));
  const std::vector<FailedRequest> failures = a_.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].number, number);
  EXPECT_EQ(failures[0].reason.to_string(), "timeout: no reply before the deadline");
  sent(b_, reply_of(8, number));
  exchange();
  const std::vector<IncomingMessage> late = a_.take_messages();
  ASSERT_EQ(late.size(), 1U);
  EXPECT_TRUE(late[0].late);
  EXPECT_TRUE(a_.take_failures().empty());
  EXPECT_EQ(a_.counts().late_replies, 1U);
}

TEST_F(PeerSessionTest, ASenderStopsAtTheCreditUntilTheReceiverReleases) {
  connect();
  exchange();
  // Each message uses 1,012 of 5,200 bytes; 8,000 may wait for an acknowledgement.
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
  for (std::uint64_t i = 0; i < 5; ++i) {
    sent(a_, message_of(i, 1000));
  }
  const Status full = a_.send(message_of(5, 1000)).status();
  EXPECT_EQ(full.to_string(),
            "resource_exhausted: peer 2: 7560 bytes are not acknowledged, at most 8000 may be");
  const Status large = a_.send(message_of(3, 1001)).status();
  EXPECT_EQ(large.to_string(),
            "invalid_argument: peer 2: a body of 1001 bytes is too large for one message (at most "
            "1000)");
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(sent(a_, message_of(5, 1000)), 6U);  // a refused message uses no number
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

TEST_F(PeerSessionTest, SaysWhenItsTimeoutsAreDue) {
  const TimePoint begin = now_;
  EXPECT_EQ(a_.next_event(), begin + seconds(30));  // it ends
  connect();
  exchange();
  wait(milliseconds(1800));
  (void)a_.take_frames(now_);                      // the next heartbeat is due after 2.05 s
  EXPECT_EQ(a_.next_event(), begin + seconds(2));  // silence

  sent(a_, message_of(0));
  exchange();
  sent(a_, message_of(1));
  (void)a_.take_frames(now_);  // lost
  const TimePoint lost = now_;
  while (now_ < lost + milliseconds(9900)) {
    wait(milliseconds(100));
    exchange();
  }
  EXPECT_EQ(a_.state(), PeerSession::State::kConnected);
  sent(b_, message_of(1));
  exchange();
  EXPECT_EQ(a_.next_event(), lost + seconds(10));  // no acknowledgement
}

TEST_F(PeerSessionTest, AConnectionThatReplacesAnotherSendsAgain) {
  connect();
  exchange();
  sent(a_, message_of(1));
  EXPECT_EQ(a_.take_frames(now_).size(), 1U);  // lost
  connect();
  exchange();
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1}));
}

TEST_F(PeerSessionTest, SilenceBreaksTheConnectionAndEndsTheSession) {
  connect();
  exchange();
  const std::uint64_t number = sent(a_, request_of(7, now_ + seconds(100)));
  wait(seconds(2) - milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kConnected);
  wait(milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kDisconnected);
  wait(seconds(28) - milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kDisconnected);
  EXPECT_TRUE(a_.take_failures().empty());
  wait(milliseconds(1));
  EXPECT_EQ(a_.state(), PeerSession::State::kEnded);
  const std::vector<FailedRequest> failures = a_.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].number, number);
  EXPECT_EQ(failures[0].reason.to_string(), "unavailable: nothing received for 30 s");
  EXPECT_EQ(a_.send(message_of(1)).status().to_string(),
            "unavailable: peer 2: nothing received for 30 s");
  a_.connect(now_);
  EXPECT_EQ(a_.state(), PeerSession::State::kEnded);
  EXPECT_EQ(a_.next_event(), TimePoint::max());
}

TEST_F(PeerSessionTest, FramesThatBreakTheRulesAreRefusedAndDoNotCount) {
  connect();
  exchange();
  sent(a_, message_of(1));
  sent(b_, message_of(1));  // not sent yet, so it cannot be acknowledged
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
            "invalid_argument: peer 1: a frame of kind 0 has number 1 and a body of 8 bytes");
  EXPECT_EQ(refusal([](Envelope& f) { f.sequence = 0; }),
            "invalid_argument: peer 1: a frame of kind 5 has number 0 and a body of 8 bytes");
  EXPECT_EQ(refusal([](Envelope& f) { f.kind = 0, f.sequence = 0; }),
            "invalid_argument: peer 1: a frame of kind 0 has number 0 and a body of 8 bytes");
  EXPECT_EQ(refusal([](Envelope& f) { f.reply_to = 1; }),
            "invalid_argument: peer 1: a reply to message 1, but only 0 were sent");
  EXPECT_EQ(refusal([](Envelope& f) { f.body = body_of(1, 1001); }),
            "invalid_argument: peer 1: a body of 1001 bytes, at most 1000 are allowed");
  EXPECT_TRUE(b_.take_messages().empty());
  EXPECT_TRUE(b_.receive(frames[0], now_).ok());
  EXPECT_EQ(values(b_.take_messages()), (std::vector<std::uint64_t>{1}));
}

TEST_F(PeerSessionTest, AMessageBeyondTheCreditIsRefused) {
  connect();
  exchange();
  sent(a_, message_of(1, 1000));
  Envelope frame = a_.take_frames(now_).at(0);
  for (std::uint64_t i = 1; i <= 3; ++i, ++frame.sequence) {
    ASSERT_TRUE(b_.receive(frame, now_).ok());
  }
  EXPECT_EQ(b_.receive(frame, now_).to_string(),
            "resource_exhausted: peer 1: a message of 1000 bytes exceeds the credit of 664");
  const std::vector<IncomingMessage> messages = b_.take_messages();
  ASSERT_EQ(messages.size(), 3U);
  b_.release(messages[0]);
  EXPECT_TRUE(b_.receive(frame, now_).ok());
}

TEST_F(PeerSessionTest, DeadlinesTravelAsTheTimeThatIsLeft) {
  sent(a_, request_of(1, now_ + milliseconds(10)));
  sent(a_, request_of(2, TimePoint::max()));
  connect();
  pass(b_, a_);  // the credit
  wait(milliseconds(10));
  const std::vector<Envelope> frames = a_.take_frames(now_);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].deadline, Duration(1));  // it has expired, and is still a request
  EXPECT_EQ(frames[1].deadline, TimePoint::max() - now_);
  ASSERT_TRUE(b_.receive(frames[0], now_).ok());
  Envelope last = frames[1];
  last.deadline = Duration::max();
  ASSERT_TRUE(b_.receive(last, now_).ok());
  const std::vector<IncomingMessage> messages = b_.take_messages();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].expires, now_ + Duration(1));
  EXPECT_EQ(messages[1].expires, TimePoint::max());
}

TEST_F(PeerSessionTest, ASessionThatNeverHearsFromItsPeerEnds) {
  while (a_.state() != PeerSession::State::kEnded) {
    ASSERT_LT(now_, kStart + seconds(60));
    a_.connect(now_);
    (void)a_.take_frames(now_);
    ASSERT_GT(a_.next_event(), now_);
    wait(std::min<Duration>(a_.next_event() - now_, seconds(1)));
    a_.disconnect("cut");
  }
  EXPECT_EQ(now_, kStart + seconds(30));
}

TEST_F(PeerSessionTest, TheFirstFrameMayBeAwaitedForAShorterTime) {
  PeerSessionOptions options = options_of(1, 2);
  options.max_first_wait = seconds(10);
  PeerSession never(options, kStart);
  EXPECT_EQ(never.next_event(), kStart + seconds(10));
  never.disconnect("no memory is left");
  never.advance(kStart + seconds(10));
  EXPECT_EQ(never.end_reason().to_string(),
            "unavailable: nothing received for 10 s; no memory is left");
  PeerSession once(options, kStart);
  once.connect(kStart);
  b_.connect(kStart);
  for (const Envelope& frame : b_.take_frames(kStart)) {
    ASSERT_TRUE(once.receive(frame, kStart).ok());
  }
  once.disconnect("cut");
  EXPECT_EQ(once.next_event(), kStart + seconds(30));
}

// The reason of the end says what the last connection had.
TEST_F(PeerSessionTest, TheEndNamesTheLastProblem) {
  connect();
  exchange();
  a_.disconnect("the cable was pulled");
  EXPECT_EQ(a_.problem(), "the cable was pulled");
  a_.disconnect("no process listens there");
  wait(seconds(30));
  EXPECT_EQ(a_.end_reason().to_string(),
            "unavailable: nothing received for 30 s; no process listens there");
  wait(seconds(1));
  EXPECT_EQ(b_.end_reason().to_string(), "unavailable: nothing received for 30 s")
      << "silence is no reason of its own";
}

TEST_F(PeerSessionTest, ASessionThatHasEndedDoesNothing) {
  connect();
  exchange();
  sent(b_, message_of(1));
  const std::vector<Envelope> frames = b_.take_frames(now_);
  ASSERT_EQ(frames.size(), 1U);
  sent(a_, message_of(1));
  a_.end("the run is over");
  EXPECT_EQ(a_.end_reason().to_string(), "unavailable: the run is over");
  EXPECT_GT(a_.unacknowledged_bytes(), 0U);
  wait(seconds(1));
  EXPECT_TRUE(a_.take_frames(now_).empty());
  EXPECT_TRUE(a_.receive(frames[0], now_).ok());
  EXPECT_TRUE(a_.take_messages().empty());
}

TEST_F(PeerSessionTest, AMessageIsReleasedOnce) {
  connect();
  exchange();
  sent(a_, message_of(1));
  exchange();
  const std::vector<IncomingMessage> messages = b_.take_messages();
  ASSERT_EQ(messages.size(), 1U);
  b_.release(messages[0]);
  EXPECT_DEATH(b_.release(messages[0]), "a message was released twice");
}

// One end of a session over a network with faults. It sends messages and requests, replies to those
// of the other end, and releases what it gets after a while.
class FaultyEnd final : public ConnectionListener {
public:
  FaultyEnd(std::uint32_t self, std::uint32_t peer, std::uint64_t seed, std::uint64_t count)
      : random_(seed, self), count_(count), session_(options_of(self, peer), kStart) {}

  void set_connection(std::unique_ptr<Connection> connection, TimePoint now) {
    now_ = now;
    connection_ = std::move(connection);
    session_.connect(now);
  }
  [[nodiscard]] bool connected() const { return connection_ != nullptr && !closed_; }
  void drop_connection() {
    connection_.reset();
    closed_ = false;
  }

  void on_frame(const Buffer& frame) override {
    const Result<Envelope> envelope = read_envelope(frame);
    if (!envelope.ok()) {
      EXPECT_EQ(envelope.status().message(), "envelope: the checksum is wrong");
      ++damaged_;
      connection_->close();
      return;
    }
    const Status status = session_.receive(envelope.value(), now_);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void on_closed(const Status& /*reason*/) override {
    closed_ = true;
    session_.disconnect("cut");
  }

  void step(TimePoint now) {
    now_ = now;
    session_.advance(now);
    while (!replies_.empty() && session_.send(replies_.front()).ok()) {
      replies_.erase(replies_.begin());
    }
    if (sent_ < count_ && random_.below(3) == 0) {
      send_next();
    }
    for (const FailedRequest& failure : session_.take_failures()) {
      ASSERT_EQ(open_.erase(failure.number), 1U) << "a request has failed twice";
      ++failed_;
    }
    for (IncomingMessage& message : session_.take_messages()) {
      take(std::move(message));
    }
    while (!held_.empty() && random_.below(4) == 0) {
      session_.release(held_.front());
      held_.erase(held_.begin());
    }
    for (const Envelope& envelope : session_.take_frames(now)) {
      Result<std::vector<std::byte>> frame = write_envelope(envelope);
      ASSERT_TRUE(frame.ok());
      (void)connection_->send(Buffer::adopt(std::move(frame).value(), DType::kU8));
    }
    if (session_.state() == PeerSession::State::kDisconnected && connected()) {
      connection_->close();  // the other end was silent, or frames were lost
    }
    ASSERT_GT(session_.next_event(), now) << "a timer spins";
  }

  [[nodiscard]] bool done() const {
    return sent_ == count_ && next_ == count_ && open_.empty() && replies_.empty() &&
           session_.unacknowledged_bytes() == 0;
  }
  void check_counts() const {
    EXPECT_EQ(replied_ + failed_, requests_);
    EXPECT_EQ(session_.counts().taken, taken_);
    EXPECT_EQ(session_.counts().late_replies, late_);
  }
  [[nodiscard]] std::uint64_t num_resent() const { return session_.counts().resent; }
  [[nodiscard]] std::uint64_t num_failed() const { return failed_; }
  [[nodiscard]] std::uint64_t num_damaged() const { return damaged_; }

private:
  void send_next() {
    OutgoingMessage message = message_of(sent_, random_.below(1000));
    const bool request = random_.below(3) == 0;
    if (request) {
      message.expires = now_ + milliseconds(1 + random_.below(3000));
    }
    const Result<std::uint64_t> number = session_.send(message);
    if (!number.ok()) {
      ASSERT_EQ(number.status().code(), Errc::kResourceExhausted);
      return;
    }
    ++sent_;
    if (request) {
      ++requests_;
      open_.insert(number.value());
    }
  }

  void take(IncomingMessage message) {
    ++taken_;
    std::uint64_t held = 0;
    for (const IncomingMessage& other : held_) {
      held += other.body.size_bytes() + kMessageOverheadBytes;
    }
    ASSERT_LE(held + message.body.size_bytes() + kMessageOverheadBytes, 5200U) << "over the credit";
    if (message.late) {
      ASSERT_FALSE(open_.contains(message.reply_to)) << "its request has not failed";
      ++late_;
    } else if (message.reply_to != 0) {
      ASSERT_EQ(open_.erase(message.reply_to), 1U) << "a request got two replies";
      ++replied_;
    } else {
      ASSERT_EQ(value_of(message.body), next_) << "lost, repeated or out of order";
      ++next_;
      if (message.expires.has_value()) {
        replies_.push_back(reply_of(0, message.number));
      }
    }
    held_.push_back(std::move(message));
  }

  RandomStream random_;
  const std::uint64_t count_;  // messages to send that are no replies
  PeerSession session_;
  std::unique_ptr<Connection> connection_;
  bool closed_ = false;
  TimePoint now_ = kStart;
  std::uint64_t sent_ = 0;   // of `count_`
  std::uint64_t taken_ = 0;  // messages of all kinds
  std::uint64_t next_ = 0;   // the value of the next message from the other end that is no reply
  std::uint64_t requests_ = 0;
  std::uint64_t replied_ = 0;
  std::uint64_t late_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t damaged_ = 0;
  std::set<std::uint64_t> open_;          // numbers of requests
  std::vector<OutgoingMessage> replies_;  // that wait for room
  std::vector<IncomingMessage> held_;     // not released
};

LoopbackFaults random_faults(std::uint64_t seed) {
  RandomStream random(seed, 3);
  LoopbackFaults faults;
  faults.lost = 0.3 * random.uniform();
  faults.repeated = 0.3 * random.uniform();
  faults.damaged = random.below(2) == 0 ? 0.0 : 0.02 * random.uniform();
  faults.broken = random.below(2) == 0 ? 0.0 : 0.02 * random.uniform();
  faults.reordered = random.below(2) == 0 ? 0.0 : 0.1 * random.uniform();
  faults.max_delay = milliseconds(200);
  return faults;
}

// Lets two ends work until everything has arrived. Broken connections are made again.
void exchange_all(FaultyEnd& a, FaultyEnd& b, LoopbackNetwork& network, RandomStream& random) {
  TimePoint connect_at = kStart;
  for (TimePoint now = kStart; !a.done() || !b.done(); now += milliseconds(1 + random.below(50))) {
    ASSERT_LT(now, kStart + seconds(3600)) << "the sessions make no progress";
    network.advance(now);
    if (!a.connected() && !b.connected()) {
      if (connect_at == TimePoint::max()) {
        connect_at = now + milliseconds(random.below(500));
      }
      if (now >= connect_at) {
        a.drop_connection();
        b.drop_connection();
        LoopbackNetwork::Pair sides = network.connect();
        sides.first->start(a);
        sides.second->start(b);
        a.set_connection(std::move(sides.first), now);
        b.set_connection(std::move(sides.second), now);
        connect_at = TimePoint::max();
      }
    }
    a.step(now);
    b.step(now);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

void run_ends(FaultyEnd& a, FaultyEnd& b, std::uint64_t seed) {
  LoopbackNetwork network(seed, random_faults(seed));
  RandomStream random(seed, 4);
  exchange_all(a, b, network, random);
  a.drop_connection();
  b.drop_connection();
}

TEST(PeerSessionFaults, NothingIsLostRepeatedOrReordered) {
  std::uint64_t resent = 0;
  std::uint64_t failed = 0;
  std::uint64_t damaged = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultyEnd a(1, 2, seed, 100);
    FaultyEnd b(2, 1, seed, 100);
    run_ends(a, b, seed);
    ASSERT_FALSE(HasFailure());
    for (const FaultyEnd* end : {&a, &b}) {
      end->check_counts();
      resent += end->num_resent();
      failed += end->num_failed();
      damaged += end->num_damaged();
    }
  }
  // The faults have happened.
  EXPECT_GT(resent, 1000U);
  EXPECT_GT(failed, 100U);
  EXPECT_GT(damaged, 100U);
}

}  // namespace
}  // namespace tidemill::transport
