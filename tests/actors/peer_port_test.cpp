// SPDX-License-Identifier: Apache-2.0
// The contract of actors/remote/peer_port.hpp, and a gate whose process does what the test says.
#include "actors/remote/peer_port.hpp"

#include <chrono>
#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/remote/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/simulated_peers.hpp"

namespace tidemill::test {
namespace {

using actors::MessageKind;
using actors::PeerMessagePtr;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What an actor at a port has received.
struct Received {
  std::vector<PeerMessagePtr> messages;  // until the test drops them
  std::vector<std::string> closed;
};

Buffer numbered(std::uint64_t number, std::size_t bytes = sizeof(std::uint64_t)) {
  std::vector<std::byte> body(bytes);
  std::memcpy(body.data(), &number, sizeof(number));
  return Buffer::adopt(std::move(body), DType::kU8);
}

class PeerPortTest : public ActorTest {
protected:
  void SetUp() override { peers_.emplace(system(), 1); }
  void TearDown() override {
    peers_->stop();
    ActorTest::TearDown();
  }
  caf::strong_actor_ptr receiver(Received& received) {
    return caf::actor_cast<caf::strong_actor_ptr>(
        keep(system().spawn([&received](caf::event_based_actor*) {
          return caf::behavior{
              [&received](atom::deliver, const PeerMessagePtr& message) {
                received.messages.push_back(message);
              },
              [&received](atom::closed, const std::string& why) { received.closed.push_back(why); },
          };
        })));
  }
  void open() {
    ports_ = peers_->make_ports();
    peers_->open(ports_, receiver(at_owner_), receiver(at_worker_));
    drain();
  }
  static std::vector<std::uint64_t> numbers(const Received& received) {
    std::vector<std::uint64_t> numbers;
    for (const PeerMessagePtr& message : received.messages) {
      std::uint64_t number = 0;
      std::memcpy(&number, message->body.bytes().data(), sizeof(number));
      numbers.push_back(number);
    }
    return numbers;
  }
  void wait(Duration time) {
    for (; time > 0ms; time -= 100ms) {
      advance(100ms);
    }
  }

  std::list<Received> callers_;  // as long as their actors
  Received at_owner_;
  Received at_worker_;
  std::optional<SimulatedPeers> peers_;
  SimulatedPeers::Ports ports_;
};

TEST_F(PeerPortTest, MessagesWaitUntilThePortIsOpen) {
  ports_ = peers_->make_ports();
  ports_.worker->tell(MessageKind::kLogLine, numbered(1));
  ports_.worker->tell(MessageKind::kLogLine, numbered(2));
  peers_->open(ports_, receiver(at_owner_), receiver(at_worker_));
  drain();
  EXPECT_THAT(numbers(at_owner_), ElementsAre(1, 2));
}

TEST_F(PeerPortTest, MessagesOfSomeKindsGoToAReceiverOfTheirOwn) {
  ports_ = peers_->make_ports();
  Received& requests = callers_.emplace_back();
  Received& ends = callers_.emplace_back();
  ports_.owner->add_receiver(MessageKind::kGenerate, MessageKind::kAdapterList, receiver(requests));
  ports_.owner->add_receiver(MessageKind::kServingEnded, MessageKind::kServingEnded,
                             receiver(ends));
  peers_->open(ports_, receiver(at_owner_), receiver(at_worker_));
  ports_.worker->tell(MessageKind::kSettlement, numbered(1));
  ports_.worker->tell(MessageKind::kGenerate, numbered(2));
  ports_.worker->tell(MessageKind::kAdapterList, numbered(3));
  ports_.worker->tell(MessageKind::kServingEnded, numbered(4));
  ports_.worker->tell(MessageKind::kStartWorker, numbered(5));
  drain();
  EXPECT_THAT(numbers(at_owner_), ElementsAre(1, 5));
  EXPECT_THAT(numbers(requests), ElementsAre(2, 3));
  EXPECT_THAT(numbers(ends), ElementsAre(4));
  ports_.owner->close("the end");
  drain();
  for (const Received* received : {&at_owner_, &requests, &ends}) {
    EXPECT_THAT(received->closed, ElementsAre("the end"));
  }
  Received& late = callers_.emplace_back();
  ports_.owner->add_receiver(MessageKind::kLogLine, MessageKind::kLogLine, receiver(late));
  drain();
  EXPECT_THAT(late.closed, ElementsAre("the end"));
}

TEST_F(PeerPortTest, ACallGetsItsReply) {
  open();
  Received& caller = callers_.emplace_back();
  const std::uint64_t call =
      ports_.worker->call(MessageKind::kLease, numbered(5), 10s, receiver(caller));
  drain();
  ASSERT_EQ(at_owner_.messages.size(), 1U);
  EXPECT_EQ(at_owner_.messages[0]->kind, MessageKind::kLease);
  EXPECT_EQ(at_owner_.messages[0]->call, 0U);
  ports_.owner->reply(at_owner_.messages[0]->number, MessageKind::kLeaseReply, numbered(6));
  wait(20s);
  ASSERT_EQ(caller.messages.size(), 1U);
  EXPECT_EQ(caller.messages[0]->call, call);
  EXPECT_EQ(caller.messages[0]->kind, MessageKind::kLeaseReply);
  EXPECT_TRUE(caller.messages[0]->failure.ok());
  EXPECT_THAT(numbers(caller), ElementsAre(6));
  EXPECT_TRUE(at_worker_.messages.empty()) << "a reply goes to the caller only";
}

TEST_F(PeerPortTest, ACallWithoutReplyFailsOnceAtItsDeadline) {
  open();
  Received& caller = callers_.emplace_back();
  ports_.worker->call(MessageKind::kLease, numbered(5), 10s, receiver(caller));
  wait(9900ms);
  EXPECT_TRUE(caller.messages.empty());
  wait(100ms);
  ASSERT_EQ(caller.messages.size(), 1U);
  EXPECT_EQ(caller.messages[0]->failure.code(), Errc::kTimeout);
  ports_.owner->reply(at_owner_.messages.at(0)->number, MessageKind::kLeaseReply, numbered(6));
  wait(10s);
  EXPECT_EQ(caller.messages.size(), 1U) << "a late reply is dropped";
}

TEST_F(PeerPortTest, AReplyThatIsTooLargeIsReplacedByTheFailure) {
  peers_->session().max_body_bytes = 1000;
  open();
  Received& caller = callers_.emplace_back();
  ports_.worker->call(MessageKind::kLease, numbered(5), 10s, receiver(caller));
  drain();
  ports_.owner->reply(at_owner_.messages.at(0)->number, MessageKind::kLeaseReply,
                      numbered(6, 1001));
  drain();
  ASSERT_EQ(caller.messages.size(), 1U);
  ASSERT_EQ(caller.messages[0]->kind, MessageKind::kFailure);
  const auto failure = actors::from_wire<actors::Failure>(caller.messages[0]->body);
  ASSERT_TRUE(failure.ok());
  EXPECT_EQ(failure.value().status.code(), Errc::kInvalidArgument);
  EXPECT_THAT(failure.value().status.message(), HasSubstr("1001 bytes is too large"));
}

TEST_F(PeerPortTest, ACallThatIsTooLargeFailsAndTheNextOneIsSent) {
  peers_->session().max_body_bytes = 1000;
  open();
  Received& caller = callers_.emplace_back();
  ports_.worker->call(MessageKind::kAck, numbered(5, 1001), 10s, receiver(caller));
  ports_.worker->call(MessageKind::kAck, numbered(7), 10s, receiver(caller));
  drain();
  ASSERT_EQ(caller.messages.size(), 1U);
  EXPECT_EQ(caller.messages[0]->failure.code(), Errc::kInvalidArgument);
  EXPECT_THAT(numbers(at_owner_), ElementsAre(7));
}

// The receiver keeps what it has received, so the sender gets no credit.
TEST_F(PeerPortTest, MessagesForASlowReceiverWaitInTheirOrder) {
  auto& session = peers_->session();
  session.max_body_bytes = 1000;
  session.send_bytes = session.receive_bytes = 4000;
  open();
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < 100; ++i) {
    ports_.worker->tell(MessageKind::kLogLine, numbered(i, 900));
    all.push_back(i);
  }
  wait(60s);
  EXPECT_THAT(numbers(at_owner_), ElementsAre(0, 1));  // 2 * (900 + 512) of 4000 bytes
  std::vector<std::uint64_t> arrived;
  for (int round = 0; round < 100 && arrived.size() < all.size(); ++round) {
    const std::vector<std::uint64_t> some = numbers(at_owner_);
    EXPECT_LE(some.size(), 2U);
    arrived.insert(arrived.end(), some.begin(), some.end());
    at_owner_.messages.clear();
    drain();
  }
  EXPECT_EQ(arrived, all);
  EXPECT_TRUE(at_owner_.closed.empty());
}

// Requests and replies that were processed leave the credit of both directions as it was.
TEST_F(PeerPortTest, CallsNeverRunOutOfCredit) {
  auto& session = peers_->session();
  session.max_body_bytes = 1000;
  session.send_bytes = session.receive_bytes = 4000;
  open();
  Received& caller = callers_.emplace_back();
  const caf::strong_actor_ptr caller_handle = receiver(caller);
  for (std::uint64_t i = 0; i < 100; ++i) {
    ports_.worker->call(MessageKind::kLease, numbered(i, 900), 10s, caller_handle);
    drain();
    ASSERT_EQ(numbers(at_owner_), std::vector{i});
    ports_.owner->reply(at_owner_.messages[0]->number, MessageKind::kLeaseReply, numbered(i, 900));
    at_owner_.messages.clear();
    drain();
    ASSERT_EQ(numbers(caller), std::vector{i});
    caller.messages.clear();
    drain();
  }
}

TEST_F(PeerPortTest, ACallThatWaitsForRoomFailsAtItsDeadlineAndIsNotSent) {
  auto& session = peers_->session();
  session.max_body_bytes = 1000;
  session.send_bytes = session.receive_bytes = 4000;
  open();
  for (std::uint64_t i = 0; i < 4; ++i) {
    ports_.worker->tell(MessageKind::kLogLine, numbered(i, 900));  // the session keeps two of them
  }
  Received& caller = callers_.emplace_back();
  const caf::strong_actor_ptr handle = receiver(caller);
  const std::uint64_t late = ports_.worker->call(MessageKind::kAck, numbered(10, 900), 20s, handle);
  const std::uint64_t early =
      ports_.worker->call(MessageKind::kAck, numbered(11, 900), 10s, handle);
  ports_.worker->call(MessageKind::kAck, numbered(12, 900), 60s, handle);
  EXPECT_EQ(ports_.worker->waiting_bytes(), 5 * numbered(0, 900).size_bytes());
  for (const auto& [call, deadline] : {std::pair(early, 10s), std::pair(late, 10s)}) {
    wait(deadline - 100ms);
    EXPECT_TRUE(caller.messages.empty());
    wait(100ms);
    ASSERT_EQ(caller.messages.size(), 1U);
    EXPECT_EQ(caller.messages[0]->call, call);
    EXPECT_EQ(caller.messages[0]->failure.code(), Errc::kTimeout);
    caller.messages.clear();
  }
  std::vector<std::uint64_t> arrived;
  for (int round = 0; round < 10; ++round) {
    const std::vector<std::uint64_t> some = numbers(at_owner_);
    arrived.insert(arrived.end(), some.begin(), some.end());
    at_owner_.messages.clear();
    drain();
  }
  EXPECT_THAT(arrived, ElementsAre(0, 1, 2, 3, 12));
  EXPECT_EQ(ports_.worker->waiting_bytes(), 0U);
  EXPECT_TRUE(caller.messages.empty());
}

TEST_F(PeerPortTest, APeerThatReadsNothingLosesItsLink) {
  open();
  const Buffer large = Buffer::adopt(std::vector<std::byte>(transport::kMaxBodyBytes), DType::kU8);
  std::size_t sent = 0;
  while (at_worker_.closed.empty() && sent < 100) {
    ports_.worker->tell(MessageKind::kLogLine, large);
    ++sent;
    drain();
  }
  EXPECT_GT(sent, actors::PeerPort::kMaxWaitingBytes / large.size_bytes());
  EXPECT_THAT(at_worker_.closed,
              ElementsAre("more than 536870912 bytes are waiting for the process"));
}

TEST_F(PeerPortTest, APortThatIsNeverOpenedDoesNotKeepMoreThanALinkMay) {
  ports_ = peers_->make_ports();
  const Buffer large = Buffer::adopt(std::vector<std::byte>(transport::kMaxBodyBytes), DType::kU8);
  Received& caller = callers_.emplace_back();
  ports_.worker->call(MessageKind::kLease, numbered(1), 10s, receiver(caller));
  for (int i = 0; i < 40; ++i) {
    ports_.worker->tell(MessageKind::kLogLine, large);
  }
  drain();
  ASSERT_EQ(caller.messages.size(), 1U);
  EXPECT_EQ(caller.messages[0]->failure.code(), Errc::kUnavailable);
  peers_->open(ports_, receiver(at_owner_), receiver(at_worker_));
  drain();
  EXPECT_EQ(at_worker_.closed.size(), 1U) << "the receiver learns that there is no link";
}

TEST_F(PeerPortTest, APortThatWasClosedBeforeItIsOpenedTellsItsReceiver) {
  ports_ = peers_->make_ports();
  ports_.worker->close("its host has ended");
  peers_->open(ports_, receiver(at_owner_), receiver(at_worker_));
  drain();
  EXPECT_THAT(at_worker_.closed, ElementsAre("its host has ended"));
}

TEST_F(PeerPortTest, TheEndFailsAllCallsAndIsToldOnce) {
  open();
  Received& caller = callers_.emplace_back();
  ports_.worker->call(MessageKind::kLease, numbered(1), 10s, receiver(caller));
  ports_.worker->call(MessageKind::kLease, numbered(2), 10s, receiver(caller));
  ports_.worker->close("bye");
  ports_.worker->close("again");
  ports_.worker->call(MessageKind::kLease, numbered(3), 10s, receiver(caller));
  ports_.worker->tell(MessageKind::kLogLine, numbered(4));
  wait(20s);
  ASSERT_EQ(caller.messages.size(), 3U);
  for (const PeerMessagePtr& failed : caller.messages) {
    EXPECT_EQ(failed->failure.code(), Errc::kUnavailable);
    EXPECT_THAT(failed->failure.message(), HasSubstr("bye"));
  }
  EXPECT_THAT(at_worker_.closed, ElementsAre("bye"));
}

// -- a gate, and a process whose replies the test chooses -----------------------------------------

class WorkerGateTest : public PeerPortTest {
protected:
  void SetUp() override {
    PeerPortTest::SetUp();
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    ports_ = peers_->make_ports();
    gate_ = keep(actors::spawn_worker_gate(
        system(), {"process worker-1", ports_.owner, stream_handle_, {}, {}}));
    peers_->open(ports_, caf::actor_cast<caf::strong_actor_ptr>(gate_), receiver(at_worker_));
    drain();
  }
  actors::RemoteWorkerActor start() {
    auto worker = keep(actors::spawn_remote_worker(system(), gate_, {"reward-0", "reward", 0}));
    drain();
    return worker;
  }
  // Returns the kinds of the messages that the process has received.
  std::vector<MessageKind> kinds() const {
    std::vector<MessageKind> kinds;
    for (const PeerMessagePtr& message : at_worker_.messages) {
      kinds.push_back(message->kind);
    }
    return kinds;
  }
  void started(std::size_t message) {
    ports_.worker->reply(at_worker_.messages.at(message)->number, MessageKind::kDone, Buffer());
    drain();
  }
  void ended(const Status& reason, std::uint64_t start) {
    ports_.worker->tell(MessageKind::kWorkerEnded,
                        actors::to_wire(actors::WorkerEnded{"reward-0", reason, start}));
    drain();
  }
  bool knows_the_worker() {
    const std::size_t before = stream_->leases.size();
    actors::LeaseRequest request = sample_lease(actors::SampleTask::kReward, 1);
    request.consumer = "reward-0";
    Received& caller = callers_.emplace_back();
    ports_.worker->call(MessageKind::kLease, actors::to_wire(request), 1s, receiver(caller));
    wait(2s);
    return stream_->leases.size() > before;
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  actors::StreamActor stream_handle_;
  actors::WorkerGateActor gate_;
};

// The process may be in the middle of a start, so it may still start the worker.
TEST_F(WorkerGateTest, AWorkerWhoseStartTakesTooLongIsStopped) {
  const auto exit = exit_of(start());
  wait(actors::kWorkerStartDeadline - 1s);
  EXPECT_FALSE(exit->has_value());
  wait(2s);
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->code(), Errc::kTimeout);
  EXPECT_THAT(kinds(), ElementsAre(MessageKind::kStartWorker, MessageKind::kStopWorker));
  EXPECT_FALSE(knows_the_worker());
}

TEST_F(WorkerGateTest, ALateFailureOfAStartLeavesTheNextWorkerAlone) {
  kill(start());
  const auto next = exit_of(start());
  ASSERT_THAT(kinds(), ElementsAre(MessageKind::kStartWorker, MessageKind::kStopWorker,
                                   MessageKind::kStartWorker));
  ports_.worker->reply(at_worker_.messages[0]->number, MessageKind::kFailure,
                       actors::to_wire(Status(Errc::kUnavailable, "no scorer")));
  drain();
  started(2);
  EXPECT_FALSE(next->has_value());
  EXPECT_TRUE(knows_the_worker());
  EXPECT_EQ(at_worker_.messages.size(), 3U) << "it is not stopped";
}

// A worker has ended while it was being stopped.
TEST_F(WorkerGateTest, ALateEndOfAWorkerLeavesTheNextOneAlone) {
  const auto first = start();
  started(0);
  kill(first);
  const auto next = exit_of(start());
  ended({Errc::kUnavailable, "the engine died"}, 1);
  started(2);
  EXPECT_FALSE(next->has_value());
  EXPECT_TRUE(knows_the_worker());
  ended({Errc::kUnavailable, "the engine died again"}, 2);
  ASSERT_TRUE(next->has_value());
  EXPECT_EQ((*next)->message(), "the engine died again");
}

TEST_F(WorkerGateTest, AStartThatIsAnsweredWithGarbageFails) {
  const auto exit = exit_of(start());
  ports_.worker->reply(at_worker_.messages.at(0)->number, MessageKind::kFailure, numbered(1));
  drain();
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->code(), Errc::kUnavailable) << "another process may do better";
}

TEST_F(WorkerGateTest, WhenTheGateIsKilledTheLinkEnds) {
  kill(gate_);
  EXPECT_EQ(ports_.owner->status().state, transport::PeerSession::State::kEnded);
  Received& caller = callers_.emplace_back();
  ports_.owner->call(MessageKind::kStartWorker, numbered(1), 10s, receiver(caller));
  drain();
  ASSERT_EQ(caller.messages.size(), 1U);
  EXPECT_EQ(caller.messages[0]->failure.message(), "its gate has ended");
}

}  // namespace
}  // namespace tidemill::test
