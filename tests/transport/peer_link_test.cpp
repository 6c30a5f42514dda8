// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_link.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "transport/envelope.hpp"
#include "transport/loopback/loopback_network.hpp"

namespace tidemill::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint16_t kKind = 5;

PeerSessionOptions session_of(std::uint32_t self, std::uint32_t peer) {
  PeerSessionOptions options;
  options.run = 77;
  options.incarnation = 2;
  options.self = self;
  options.peer = peer;
  options.max_body_bytes = 1000;
  options.send_bytes = 8000;
  options.receive_bytes = 8000;
  return options;
}

OutgoingMessage message_of(std::uint64_t value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  OutgoingMessage message;
  message.kind = kKind;
  message.body = Buffer::adopt(std::move(bytes), DType::kU8);
  return message;
}

std::uint64_t value_of(const Buffer& body) {
  std::uint64_t value = 0;
  std::memcpy(&value, body.bytes().data(), sizeof(value));
  return value;
}

// Keeps what a link reports.
class RecordingPeer : public PeerLinkListener {
public:
  void on_message(const IncomingMessage& message) override {
    EXPECT_EQ(ended_, 0) << "a message after the end";
    messages_.push_back(message);
  }
  void on_failure(const FailedRequest& failed) override {
    EXPECT_EQ(ended_, 0) << "a failure after the end";
    failures_.push_back(failed);
  }
  void on_room() override {
    EXPECT_EQ(ended_, 0) << "room after the end";
    ++rooms_;
  }
  void on_silence(Duration lasted) override { silences_.push_back(lasted); }
  void on_heard(Duration lasted) override { heard_.push_back(lasted); }
  void on_ended(const Status& reason) override {
    ++ended_;
    reason_ = reason;
  }

  [[nodiscard]] std::vector<std::uint64_t> values() const {
    std::vector<std::uint64_t> values;
    for (const IncomingMessage& message : messages_) {
      values.push_back(value_of(message.body));
    }
    return values;
  }

  std::vector<IncomingMessage> messages_;
  std::vector<FailedRequest> failures_;
  int rooms_ = 0;
  std::vector<Duration> silences_;
  std::vector<Duration> heard_;
  int ended_ = 0;
  Status reason_;
};

// A process that accepts connections and one that opens them, over a network in virtual time.
class PeerLinkTest : public ::testing::Test, public Connector {
protected:
  void open(const LoopbackFaults& faults = {}, std::uint64_t seed = 1) {
    network_ = std::make_unique<LoopbackNetwork>(seed, faults);
    network_->advance(clock_.now());
    PeerLinkOptions options;
    options.session = session_of(1, 2);
    owner_ = owner_links_->open(options, at_owner_);
    options.session = session_of(2, 1);
    options.connector = this;
    worker_ = worker_links_->open(options, at_worker_);
  }
  void TearDown() override {
    worker_.reset();
    owner_.reset();
    worker_links_.reset();
    owner_links_.reset();
  }

  Result<std::unique_ptr<Connection>> connect(Duration /*max_wait*/) override {
    ++attempts_;
    if (!listening_) {
      return Status(Errc::kUnavailable, "nothing listens");
    }
    auto [first, second] = network_->connect();
    owner_links_->accept(std::move(second));
    return std::move(first);
  }

  // Stops the process with the connector, or lets it go on.
  void stop_worker(bool stop) {
    worker_stopped_ = stop;
    network_->set_fates(
        [stop](const Buffer& /*frame*/) { return stop ? FrameFate::kLost : FrameFate::kCarried; },
        milliseconds(1));
  }

  // Lets the time pass, from event to event. The worker does nothing while it is stopped.
  void wait(Duration time) {
    const TimePoint until = clock_.now() + time;
    while (true) {
      network_->advance(clock_.now());
      owner_links_->advance();
      if (!worker_stopped_) {
        worker_links_->advance();
      }
      const TimePoint next =
          std::min({network_->next_event(), owner_links_->next_event(),
                    worker_stopped_ ? TimePoint::max() : worker_links_->next_event()});
      if (next > until) {
        clock_.advance(until - clock_.now());
        return;
      }
      // An event that is due and not gone is an endless loop.
      ASSERT_LT(++rounds_, 1'000'000) << "no progress";
      clock_.advance(std::max(next, clock_.now()) - clock_.now());
    }
  }

  static std::uint64_t sent(PeerLink& link, const OutgoingMessage& message) {
    const Result<std::uint64_t> number = link.send(message);
    EXPECT_TRUE(number.ok()) << number.status().to_string();
    return number.ok() ? number.value() : 0;
  }

  ManualClock clock_;
  RecordingPeer at_owner_;
  RecordingPeer at_worker_;
  std::unique_ptr<LoopbackNetwork> network_;
  std::unique_ptr<PeerLinks> owner_links_ = std::make_unique<PeerLinks>(clock_, [] {});
  std::unique_ptr<PeerLinks> worker_links_ = std::make_unique<PeerLinks>(clock_, [] {});
  std::unique_ptr<PeerLink> owner_;
  std::unique_ptr<PeerLink> worker_;
  bool listening_ = true;
  bool worker_stopped_ = false;
  int attempts_ = 0;
  int rounds_ = 0;
};

TEST_F(PeerLinkTest, CarriesMessagesBothWays) {
  open();
  sent(*worker_, message_of(1));
  sent(*worker_, message_of(2));
  sent(*owner_, message_of(3));
  wait(milliseconds(1));
  EXPECT_EQ(at_owner_.values(), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(at_worker_.values(), (std::vector<std::uint64_t>{3}));
  EXPECT_EQ(attempts_, 1);
  const PeerLinkStatus status = owner_->status();
  EXPECT_EQ(status.state, PeerSession::State::kConnected);
  EXPECT_EQ(status.counts.taken, 2U);
  EXPECT_EQ(status.counts.sent, 1U);
  EXPECT_EQ(status.unacknowledged_bytes, 0U);
  EXPECT_GT(status.received_bytes, 0U);
}

TEST_F(PeerLinkTest, ARequestGetsItsReply) {
  open();
  OutgoingMessage request = message_of(1);
  request.expires = clock_.now() + seconds(1);
  const std::uint64_t number = sent(*worker_, request);
  wait(milliseconds(1));
  ASSERT_EQ(at_owner_.messages_.size(), 1U);
  OutgoingMessage reply = message_of(9);
  reply.reply_to = at_owner_.messages_[0].number;
  sent(*owner_, reply);
  wait(seconds(5));
  ASSERT_EQ(at_worker_.messages_.size(), 1U);
  EXPECT_EQ(at_worker_.messages_[0].reply_to, number);
  EXPECT_TRUE(at_worker_.failures_.empty());
}

TEST_F(PeerLinkTest, ARequestWithoutReplyFailsAtItsDeadline) {
  open();
  OutgoingMessage request = message_of(1);
  request.expires = clock_.now() + milliseconds(700);
  const std::uint64_t number = sent(*worker_, request);
  wait(milliseconds(699));
  EXPECT_TRUE(at_worker_.failures_.empty());
  wait(milliseconds(1));
  ASSERT_EQ(at_worker_.failures_.size(), 1U);
  EXPECT_EQ(at_worker_.failures_[0].number, number);
  EXPECT_EQ(at_worker_.failures_[0].reason.code(), Errc::kTimeout);
}

TEST_F(PeerLinkTest, TriesAgainWithPausesThatGrow) {
  listening_ = false;
  open();
  sent(*worker_, message_of(1));
  wait(milliseconds(0));
  EXPECT_EQ(attempts_, 1);
  wait(milliseconds(10));
  EXPECT_EQ(attempts_, 2);
  wait(milliseconds(19));
  EXPECT_EQ(attempts_, 2);
  wait(milliseconds(1));
  EXPECT_EQ(attempts_, 3);
  wait(seconds(10));
  EXPECT_LE(attempts_, 20);  // the pauses are at most a second
  EXPECT_GE(attempts_, 15);
  EXPECT_EQ(worker_->status().problem, "nothing listens");
  listening_ = true;
  wait(seconds(1));
  EXPECT_EQ(at_owner_.values(), (std::vector<std::uint64_t>{1}));
}

TEST_F(PeerLinkTest, EndsIfThePeerStaysUnreachable) {
  listening_ = false;
  open();
  OutgoingMessage request = message_of(1);
  request.expires = clock_.now() + seconds(3600);
  sent(*worker_, request);
  wait(seconds(31));
  EXPECT_EQ(at_worker_.ended_, 1);
  EXPECT_EQ(at_worker_.reason_.message(), "nothing received for 30 s; nothing listens");
  ASSERT_EQ(at_worker_.failures_.size(), 1U);
  EXPECT_EQ(at_worker_.failures_[0].reason.code(), Errc::kUnavailable);
  EXPECT_EQ(worker_->send(message_of(2)).status().code(), Errc::kUnavailable);
  const int attempts = attempts_;
  worker_->wake_at(clock_.now() + seconds(1));
  wait(seconds(60));
  worker_links_->advance();
  EXPECT_EQ(attempts_, attempts);  // an ended link opens no connection
  EXPECT_EQ(at_worker_.ended_, 1);
}

TEST_F(PeerLinkTest, TellsOnceOfASilenceAndOnceOfItsEnd) {
  open();
  wait(seconds(60));
  EXPECT_TRUE(at_owner_.silences_.empty()) << "heartbeats are heard";
  for (std::size_t i = 1; i <= 2; ++i) {
    stop_worker(true);
    wait(milliseconds(4700));
    EXPECT_EQ(at_owner_.silences_.size(), i - 1);
    wait(seconds(7));
    ASSERT_EQ(at_owner_.silences_.size(), i);
    EXPECT_EQ(at_owner_.silences_.back(), seconds(5));
    EXPECT_EQ(at_owner_.heard_.size(), i - 1);
    stop_worker(false);
    wait(seconds(2));
    ASSERT_EQ(at_owner_.heard_.size(), i);
    EXPECT_GE(at_owner_.heard_.back(), milliseconds(11'700));
    EXPECT_LE(at_owner_.heard_.back(), milliseconds(12'300));
  }
  wait(seconds(60));
  EXPECT_EQ(at_owner_.silences_.size(), 2U);
  EXPECT_EQ(at_owner_.heard_.size(), 2U);
}

// The end has a line of its own, and a peer may take long to start.
TEST_F(PeerLinkTest, ASilenceThatEndsTheSessionAndAPeerThatWasNeverHeardAreNoMore) {
  listening_ = false;
  open();
  wait(seconds(20));
  EXPECT_TRUE(at_owner_.silences_.empty());
  listening_ = true;
  wait(seconds(2));
  stop_worker(true);
  wait(seconds(60));
  EXPECT_EQ(at_owner_.silences_.size(), 1U);
  EXPECT_TRUE(at_owner_.heard_.empty());
  EXPECT_EQ(at_owner_.ended_, 1);
}

// What has arrived meanwhile was not read, so this process cannot know whether its peer is silent.
TEST_F(PeerLinkTest, AProcessThatWasStoppedItselfTellsOfNoSilence) {
  open();
  wait(seconds(1));
  clock_.advance(seconds(8));
  owner_links_->advance();  // before the frames that wait are read
  wait(seconds(10));
  EXPECT_TRUE(at_owner_.silences_.empty());
  EXPECT_TRUE(at_owner_.heard_.empty());
}

TEST_F(PeerLinkTest, TellsWhenThereIsRoomAgain) {
  open();
  wait(milliseconds(1));
  Result<std::uint64_t> number = worker_->send(message_of(0));
  while (number.ok()) {
    number = worker_->send(message_of(0));
  }
  EXPECT_EQ(number.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(at_worker_.rooms_, 0);
  wait(milliseconds(1));
  EXPECT_EQ(at_worker_.rooms_, 1);
  sent(*worker_, message_of(7));
  for (const IncomingMessage& message : at_owner_.messages_) {
    owner_->release(message);
  }
  wait(milliseconds(1));
  EXPECT_EQ(at_owner_.values().back(), 7U);
  EXPECT_EQ(at_worker_.rooms_, 1);  // the sender has not asked again
}

// Frames that are no envelopes cost their sender the connection, and nothing else.
TEST_F(PeerLinkTest, AMalformedFrameEndsItsConnection) {
  open();
  wait(milliseconds(1));
  RecordingPeer at_third;
  auto [ours, theirs] = network_->connect();
  owner_links_->accept(std::move(theirs));
  ASSERT_TRUE(ours->send(Buffer::copy_of(std::as_bytes(std::span("nonsense", 8)))).ok());
  wait(milliseconds(1));
  EXPECT_EQ(ours->send(Buffer{}).code(), Errc::kUnavailable);
  sent(*worker_, message_of(1));
  wait(milliseconds(1));
  EXPECT_EQ(at_owner_.values(), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(attempts_, 1);
  ours.reset();
}

Buffer first_frame(std::uint64_t run, std::uint32_t sender) {
  Envelope envelope;
  envelope.run = run;
  envelope.incarnation = 2;
  envelope.sender = sender;
  auto bytes = write_envelope(envelope);
  return Buffer::adopt(std::move(bytes).value(), DType::kU8);
}

TEST_F(PeerLinkTest, AFrameOfAnUnknownPeerEndsItsConnection) {
  open();
  wait(milliseconds(1));
  for (const auto& [run, sender] : std::map<std::uint64_t, std::uint32_t>{{77, 3}, {78, 2}}) {
    auto [ours, theirs] = network_->connect();
    owner_links_->accept(std::move(theirs));
    ASSERT_TRUE(ours->send(first_frame(run, sender)).ok());
    wait(milliseconds(1));
    EXPECT_EQ(ours->send(Buffer{}).code(), Errc::kUnavailable) << run << " " << sender;
    ours.reset();
  }
  EXPECT_EQ(owner_->status().state, PeerSession::State::kConnected);
}

TEST_F(PeerLinkTest, AConnectionThatStaysSilentIsClosed) {
  open();
  auto [ours, theirs] = network_->connect();
  owner_links_->accept(std::move(theirs));
  wait(PeerLinks::kMaxArrivalTime - milliseconds(1));
  EXPECT_TRUE(ours->send(first_frame(0, 0)).ok());
  ours.reset();
  std::tie(ours, theirs) = network_->connect();
  owner_links_->accept(std::move(theirs));
  wait(PeerLinks::kMaxArrivalTime);
  EXPECT_EQ(ours->send(Buffer{}).code(), Errc::kUnavailable);
  ours.reset();
}

TEST_F(PeerLinkTest, TooManySilentConnectionsReplaceTheOldest) {
  open();
  wait(milliseconds(1));
  std::vector<std::unique_ptr<Connection>> ours;
  for (std::size_t i = 0; i < PeerLinks::kMaxArrivals + 1; ++i) {
    auto [first, second] = network_->connect();
    owner_links_->accept(std::move(second));
    ours.push_back(std::move(first));
  }
  EXPECT_EQ(ours.front()->send(Buffer{}).code(), Errc::kUnavailable);
  ours.erase(ours.begin());
  for (const auto& connection : ours) {
    EXPECT_TRUE(connection->send(first_frame(0, 0)).ok());
  }
  ours.clear();
}

// A second connection of a peer replaces the first one, with which nothing is lost.
TEST_F(PeerLinkTest, ASecondConnectionReplacesTheFirst) {
  open();
  wait(milliseconds(1));
  auto [ours, theirs] = network_->connect();
  owner_links_->accept(std::move(theirs));
  ASSERT_TRUE(ours->send(first_frame(77, 2)).ok());
  wait(milliseconds(1));
  ours.reset();
  sent(*owner_, message_of(4));
  sent(*worker_, message_of(5));
  wait(seconds(5));
  EXPECT_EQ(at_worker_.values(), (std::vector<std::uint64_t>{4}));
  EXPECT_EQ(at_owner_.values(), (std::vector<std::uint64_t>{5}));
  EXPECT_GE(attempts_, 2);
}

TEST_F(PeerLinkTest, DestroyingALinkEndsItsConnection) {
  open();
  wait(milliseconds(1));
  owner_.reset();
  sent(*worker_, message_of(1));
  wait(seconds(2));
  EXPECT_NE(worker_->status().state, PeerSession::State::kEnded);
  EXPECT_GE(attempts_, 2);  // each is refused, because no link has its number
}

// Notes whether it is called by a thread that sends.
class PeerInTheMiddle final : public RecordingPeer {
public:
  void on_message(const IncomingMessage& message) override {
    called_by_sender_ = called_by_sender_ || sending_;
    RecordingPeer::on_message(message);
  }
  bool sending_ = false;
  bool called_by_sender_ = false;
};

// A program that holds a lock while it sends, and takes it when it is called, would wait for
// itself. The other thread is in the middle of a call, which has collected a message.
TEST_F(PeerLinkTest, SendingCallsNoListener) {
  PeerInTheMiddle at_owner;
  bool armed = false;
  int sent_in_the_middle = 0;
  owner_links_ = std::make_unique<PeerLinks>(clock_, [&] {
    if (std::exchange(armed, false)) {  // the other thread, while this one has no lock
      at_owner.sending_ = true;
      sent_in_the_middle += owner_->send(message_of(8)).ok() ? 1 : 0;
      at_owner.sending_ = false;
    }
  });
  network_ = std::make_unique<LoopbackNetwork>(1);
  PeerLinkOptions options;
  options.session = session_of(1, 2);
  owner_ = owner_links_->open(options, at_owner);
  wait(milliseconds(1));
  auto [ours, theirs] = network_->connect();
  owner_links_->accept(std::move(theirs));
  Envelope first;
  first.run = 77;
  first.incarnation = 2;
  first.sender = 2;
  first.kind = kKind;
  first.sequence = 1;
  first.body = message_of(4).body;
  ASSERT_TRUE(ours->send(Buffer::adopt(write_envelope(first).value(), DType::kU8)).ok());
  armed = true;
  network_->advance(clock_.now());  // a connection wakes the link earlier than planned
  EXPECT_EQ(sent_in_the_middle, 1);
  EXPECT_EQ(at_owner.values(), (std::vector<std::uint64_t>{4}));
  EXPECT_FALSE(at_owner.called_by_sender_);
  ours.reset();
}

// Sends numbered messages and requests, and replies to requests.
class BusyPeer final : public PeerLinkListener {
public:
  BusyPeer(std::uint64_t seed, const Clock& clock) : random_(seed), clock_(clock) {}

  void set_link(PeerLink* link) { link_ = link; }

  void step() {
    flush();
    for (std::uint64_t i = random_.below(4); i > 0 && sent_ < kCount && replies_.empty(); --i) {
      OutgoingMessage message = message_of(sent_);
      if (random_.below(2) == 0) {
        message.expires = clock_.now() + milliseconds(1 + random_.below(2000));
      }
      const Result<std::uint64_t> number = link_->send(message);
      if (!number.ok()) {
        ASSERT_EQ(number.status().code(), Errc::kResourceExhausted);
        return;
      }
      ++sent_;
      if (message.expires.has_value()) {
        ASSERT_TRUE(open_.emplace(number.value(), true).second);
      }
    }
  }

  [[nodiscard]] bool done() const {
    return sent_ == kCount && next_ == kCount && open_.empty() && replies_.empty();
  }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }
  [[nodiscard]] std::uint64_t late() const { return late_; }

  void on_message(const IncomingMessage& message) override {
    link_->release(message);
    if (message.late) {
      ++late_;
      return;
    }
    if (message.reply_to != 0) {
      ASSERT_EQ(open_.erase(message.reply_to), 1U) << "a second reply";
      return;
    }
    ASSERT_EQ(value_of(message.body), next_) << "lost, repeated or out of order";
    ++next_;
    if (message.expires.has_value() && random_.below(4) > 0) {
      OutgoingMessage reply = message_of(0);
      reply.reply_to = message.number;
      replies_.push_back(reply);
    }
  }
  void on_failure(const FailedRequest& failed) override {
    ASSERT_EQ(open_.erase(failed.number), 1U) << "a second failure, or a failure after the reply";
    ++failed_;
  }
  void on_room() override { flush(); }
  void on_ended(const Status& reason) override { FAIL() << reason.to_string(); }

private:
  static constexpr std::uint64_t kCount = 200;

  void flush() {
    while (!replies_.empty() && link_->send(replies_.front()).ok()) {
      replies_.erase(replies_.begin());
    }
  }

  RandomStream random_;
  const Clock& clock_;
  PeerLink* link_ = nullptr;
  std::uint64_t sent_ = 0;
  std::uint64_t next_ = 0;  // the value of the next message
  std::uint64_t failed_ = 0;
  std::uint64_t late_ = 0;                // replies
  std::map<std::uint64_t, bool> open_;    // requests
  std::vector<OutgoingMessage> replies_;  // that wait for room
};

class PeerLinkFaults : public PeerLinkTest {};

TEST_F(PeerLinkFaults, NothingIsLostRepeatedOrReordered) {
  int attempts = 0;
  std::uint64_t failed = 0;
  std::uint64_t late = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed, 1);
    LoopbackFaults faults;
    faults.repeated = 0.2 * random.uniform();
    faults.lost = 0.02 * random.uniform();
    faults.damaged = 0.05 * random.uniform();
    faults.broken = 0.02 * random.uniform();
    faults.reordered = 0.02 * random.uniform();
    faults.max_delay = milliseconds(random.below(100));
    BusyPeer at_a(2 * seed, clock_);
    BusyPeer at_b(2 * seed + 1, clock_);
    network_ = std::make_unique<LoopbackNetwork>(seed, faults);
    network_->advance(clock_.now());
    PeerLinkOptions options;
    options.session = session_of(1, 2);
    owner_ = owner_links_->open(options, at_a);
    options.session = session_of(2, 1);
    options.connector = this;
    worker_ = worker_links_->open(options, at_b);
    at_a.set_link(owner_.get());
    at_b.set_link(worker_.get());
    const TimePoint limit = clock_.now() + seconds(3600);
    while (!at_a.done() || !at_b.done()) {
      at_a.step();
      at_b.step();
      wait(milliseconds(random.below(50)));
      ASSERT_LT(clock_.now(), limit) << "no progress";
      ASSERT_FALSE(HasFailure());
    }
    failed += at_a.failed() + at_b.failed();
    late += at_a.late() + at_b.late();
    attempts += std::exchange(attempts_, 0);
    worker_.reset();
    owner_.reset();
    owner_links_ = std::make_unique<PeerLinks>(clock_, [] {});  // a connection may have arrived
  }
  // The faults have happened.
  EXPECT_GT(attempts, 500);
  EXPECT_GT(failed, 500U);
  EXPECT_GT(late, 0U);
}

}  // namespace
}  // namespace tidemill::transport
