// SPDX-License-Identifier: Apache-2.0
// Each kind of message between two processes under each fault of the network.
//
// Two processes have all the actors that talk to each other: a stream and a device that serves on
// one side each, with their gates and proxies. A cell of the table sends one message, and the
// network does one thing to its frame, or to the frame of its reply. Then the request gets exactly
// one reply, the message takes effect exactly once, and the link goes on. If the network carries
// nothing any more, the request gets exactly one failure by its deadline instead.
#include <algorithm>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/remote/peer_reply.hpp"
#include "actors/remote/remote_device.hpp"
#include "actors/remote/serving.hpp"
#include "actors/remote/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/worker_leases.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/local_buffers.hpp"
#include "tests/support/simulated_peers.hpp"
#include "transport/envelope.hpp"

namespace tidemill::actors {

// Returns the name of a kind, or nothing if there is no such kind. A kind that is not listed here
// does not compile.
std::string name_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::kFailure: return "Failure";
    case MessageKind::kDone: return "Done";
    case MessageKind::kLease: return "Lease";
    case MessageKind::kLeaseReply: return "LeaseReply";
    case MessageKind::kAck: return "Ack";
    case MessageKind::kNack: return "Nack";
    case MessageKind::kRenew: return "Renew";
    case MessageKind::kRetire: return "Retire";
    case MessageKind::kSettlement: return "Settlement";
    case MessageKind::kGenerate: return "Generate";
    case MessageKind::kRolloutResult: return "RolloutResult";
    case MessageKind::kCancel: return "Cancel";
    case MessageKind::kLoad: return "Load";
    case MessageKind::kLoaded: return "Loaded";
    case MessageKind::kAdapters: return "Adapters";
    case MessageKind::kAdapterList: return "AdapterList";
    case MessageKind::kServingEnded: return "ServingEnded";
    case MessageKind::kStartDevice: return "StartDevice";
    case MessageKind::kStartWorker: return "StartWorker";
    case MessageKind::kDrainWorker: return "DrainWorker";
    case MessageKind::kStopWorker: return "StopWorker";
    case MessageKind::kWorkerEnded: return "WorkerEnded";
    case MessageKind::kLogLine: return "LogLine";
    case MessageKind::kRowMemory: return "RowMemory";
  }
  return {};
}
void PrintTo(MessageKind kind, std::ostream* out) {
  *out << name_of(kind);
}

}  // namespace tidemill::actors

namespace tidemill::test {
namespace {

using actors::MessageKind;
using actors::SampleTask;
using storage::Settlement;
using transport::FrameFate;
using namespace std::chrono_literals;

enum class Fault {
  kRequestLost,
  kReplyLost,  // of a message without a reply: its acknowledgement, together with the connection
  kDuplicated,
  kReordered,
  kDelayed,
  kCorrupted,
  kDisconnected,
  kCutOff,  // the network carries neither this frame nor any later one
};
constexpr std::pair<Fault, const char*> kFaults[] = {
    {Fault::kRequestLost, "RequestLost"},   {Fault::kReplyLost, "ReplyLost"},
    {Fault::kDuplicated, "Duplicated"},     {Fault::kReordered, "Reordered"},
    {Fault::kDelayed, "Delayed"},           {Fault::kCorrupted, "Corrupted"},
    {Fault::kDisconnected, "Disconnected"}, {Fault::kCutOff, "CutOff"},
};

std::vector<MessageKind> all_kinds() {
  std::vector<MessageKind> kinds;
  for (std::uint32_t number = 0; number <= 0xFFFF; ++number) {
    if (const auto kind = static_cast<MessageKind>(number); !actors::name_of(kind).empty()) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

// A frame that is late arrives while the connection still counts as alive.
constexpr Duration kDelay = 1500ms;
constexpr Duration kStep = 250ms;
// Longer than a session without its peer.
constexpr Duration kEnd = 45s;
// Of the rows that the stream leases.
constexpr int kLentCells = 2;

using Cell = std::tuple<MessageKind, std::pair<Fault, const char*>>;

class MessageFaultTest : public ActorTest, public ::testing::WithParamInterface<Cell> {
public:
  // A kind of message, and the exchange in which it occurs: `kind` is the request or the reply.
  struct Row {
    MessageKind kind;
    MessageKind request;
    std::optional<MessageKind> reply;  // nothing: the message has none
    void (MessageFaultTest::*send)();
    Duration deadline = actors::kReplyMargin;  // for the reply
  };
  static const std::vector<Row>& rows();

protected:
  void SetUp() override {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    device_handle_ = keep(spawn_fake_device(system(), device_));
    peers_.emplace(system(), 1);
    const auto ports = peers_->make_ports();
    ports_ = ports;
    actors::WorkerGateDeps gate;
    gate.process = "process";
    gate.port = ports.owner;
    gate.stream = stream_handle_;
    gate.log = [this](const std::string& line) { log_.push_back(line); };
    gate.on_end = [this](const Status&) { ++gate_ends_; };
    if (std::get<0>(GetParam()) != MessageKind::kRowMemory) {  // which the test itself sends
      gate.rows = {buffers_, {}, /*min_bytes=*/1};
    }
    gate_ = keep(actors::spawn_worker_gate(system(), std::move(gate)));
    serving_ =
        keep(actors::spawn_serving_proxy(system(), {"device", ports.owner, buffers_, &port()}));
    consumers_ = keep(
        actors::spawn_stream_proxy(system(), ports.worker, [this](const actors::SegmentAddress&) {
          ++row_memories_;
          return Result<std::shared_ptr<actors::BufferResolver>>(buffers_);
        }));
    actors::WorkerHostDeps deps;
    deps.port = ports.worker;
    deps.make_worker = [this](const std::string& kind,
                              std::uint32_t number) -> Result<actors::WorkerSpec> {
      return actors::WorkerSpec{kind + "-" + std::to_string(number),
                                [this] { return workers_.emplace_back(make_worker()); }, kind};
    };
    deps.on_end = [this](const std::string&) { ++host_ends_; };
    host_ = keep(actors::spawn_worker_host(system(), std::move(deps)));
    keep(actors::spawn_serving_gate(system(), {ports.worker, device_handle_, buffers_, &port()}));
    actors::DeviceHostDeps device;
    device.port = ports.worker;
    device.work = &port();
    device.open = [this](const actors::StartDevice&) {
      ++device_starts_;
      return actors::OpenedDevice{buffers_,
                                  [this] { return actors::ServingActor(device_handle_); }};
    };
    keep(actors::spawn_device_host(system(), std::move(device)));
    peers_->open(ports, caf::actor_cast<caf::strong_actor_ptr>(gate_),
                 caf::actor_cast<caf::strong_actor_ptr>(host_));
    worker_ = keep(actors::spawn_remote_worker(system(), gate_, {"reward-0", "reward", 0}));
    drain();
  }
  void TearDown() override {
    peers_->stop();
    device_->listener = nullptr;
    workers_.clear();
    ActorTest::TearDown();
  }
  // A worker counts how often it is drained, and fails with a text that it is sent.
  caf::actor make_worker() {
    return keep(system().spawn([this](caf::event_based_actor* self) {
      self->attach_functor([this] { ++worker_ends_; });
      return caf::behavior{
          [this](atom::drain) { ++drained_; },
          [self](atom::record, const std::string& why) {
            self->quit(actors::to_caf_error({Errc::kCorruptData, why}));
          },
      };
    }));
  }

  // -- the exchanges: each sends a message, and says how to count its replies and its effects
  // ------

  template <class Value, class Handle, class... Ts>
  void request(const Handle& handle, Ts... message) {
    const Reply<Value> reply = ask<Value>(handle, std::move(message)...);
    replies_ = [reply] { return reply.count(); };
    status_ = [reply] { return reply.ok() ? Status() : reply.status(); };
  }
  void count(std::function<int()> effects) { effects_ = std::move(effects); }

  void lease() {
    actors::LeaseRequest lease = sample_lease(SampleTask::kReward, 4, 5s);
    lease.consumer = "reward-0";
    request<actors::LeaseReply>(consumers_, atom::lease_v, lease);
    count([this] { return std::max(leases_, buffers_->resolved / kLentCells); });
  }
  void ack() {
    actors::AckRequest ack = ack_of(SampleTask::kReward, {trainable_row(0, 0)}, reward_cells());
    ack.consumer = "reward-0";
    request<Settlement>(consumers_, atom::ack_v, ack);
    count([this] { return static_cast<int>(stream_->acks.size()); });
  }
  void failing_ack() {
    stream_->failure = {Errc::kResourceExhausted, "not now"};
    expected_ = Errc::kResourceExhausted;
    ack();
  }
  actors::LeaseUpdate update() {
    actors::LeaseUpdate update = lease_update_of(SampleTask::kReward, {trainable_row(0, 0)});
    update.consumer = "reward-0";
    return update;
  }
  void nack() {
    request<Settlement>(consumers_, atom::nack_v, update());
    count([this] { return static_cast<int>(stream_->nacks.size()); });
  }
  void renew() {
    request<Settlement>(consumers_, atom::renew_v, update());
    count([this] { return static_cast<int>(stream_->renewals.size()); });
  }
  void retire() {
    request<Settlement>(consumers_, atom::retire_v,
                        actors::GroupVerdict{{4}, {storage::VerdictKind::kFilter, "even"}});
    count([this] { return static_cast<int>(stream_->verdicts.size()); });
  }
  void generate() {
    engines::RolloutRequest wanted;
    wanted.id = {7};
    wanted.prompt_ids = {1, 2, 3};
    request<engines::RolloutResult>(serving_, atom::generate_v, wanted);
    count([this] { return generations_; });
  }
  void cancel() {
    caf::anon_send(serving_, atom::cancel_v, SampleId{7});
    count([this] { return static_cast<int>(device_->cancelled.size()); });
  }
  static Tensor tensor() {
    return {DType::kF32, {2}, Buffer::adopt(std::vector<float>{1.0F, 2.0F}, DType::kF32)};
  }
  // A load takes effect once: its tensors are resolved once too.
  void load() {
    engines::Snapshot snapshot;
    snapshot.version = {0, 0, 3};
    snapshot.base["head"] = tensor();
    request<PolicyVersion>(serving_, atom::load_v, snapshot);
    count([this] { return std::max(loads_, buffers_->resolved); });
  }
  void adapters() {
    actors::AdapterRequest wanted;
    wanted.name = "poet";
    wanted.tensors["lora_A"] = tensor();
    request<actors::AdapterList>(serving_, atom::adapters_v, wanted);
    count([this] { return std::max(adapter_requests_, buffers_->resolved); });
  }
  void end_serving() {
    const auto exit = exit_of(serving_);
    kill(device_handle_);
    count([exit] { return exit->has_value() ? 1 : 0; });
  }
  void start_device() {
    const auto replies = std::make_shared<std::vector<Status>>();
    const auto caller = keep(system().spawn([replies](caf::event_based_actor*) {
      return caf::behavior{[replies](atom::deliver, const actors::PeerMessagePtr& reply) {
        replies->push_back(actors::failure_of(*reply));
      }};
    }));
    ports_.owner->call(MessageKind::kStartDevice, to_wire(actors::StartDevice{}),
                       actors::kDeviceStartDeadline,
                       caf::actor_cast<caf::strong_actor_ptr>(caller));
    replies_ = [replies] { return static_cast<int>(replies->size()); };
    status_ = [replies] {
      return replies->empty() ? Status(Errc::kTimeout, "no reply yet") : replies->front();
    };
    count([this] { return device_starts_; });
  }
  void start_worker() {
    request<actors::WorkerStatus>(gate_, atom::start_v,
                                  actors::StartWorker{"reward-1", "reward", 1});
    count([this] { return static_cast<int>(workers_.size()) - 1; });
  }
  void drain_worker() {
    caf::anon_send(worker_, atom::drain_v);
    count([this] { return drained_; });
  }
  // The stop must not reach the next worker of the same name.
  void stop_worker() {
    kill(worker_);
    worker_ = keep(actors::spawn_remote_worker(system(), gate_, {"reward-0", "reward", 0}));
    drain();
    count([this] { return worker_ends_; });
  }
  void end_worker() {
    const auto exit = exit_of(worker_);
    caf::anon_send(workers_.front(), atom::record_v, std::string("the scorer is broken"));
    count([exit] { return exit->has_value() && (*exit)->code() == Errc::kCorruptData ? 1 : 0; });
  }
  void row_memory() {
    ports_.owner->tell(MessageKind::kRowMemory, to_wire(actors::RowMemory{}));
    count([this] { return row_memories_; });
  }
  void log() {
    caf::anon_send(host_, atom::record_v, std::string("line"));
    count([this] { return static_cast<int>(std::ranges::count(log_, "line")); });
  }

  // -- the network
  // ---------------------------------------------------------------------------------

  // Finds the frame that the cell is about.
  FrameFate fate_of(const Row& row, Fault fault, const Buffer& frame) {
    const auto read = transport::read_envelope(frame);
    EXPECT_TRUE(read.ok());
    if (cut_off_ || hit_at_.has_value()) {
      return cut_off_ ? FrameFate::kLost : FrameFate::kCarried;
    }
    const transport::Envelope& envelope = read.value();
    const bool is_request = !request_.has_value() && envelope.reply_to == 0 &&
                            static_cast<MessageKind>(envelope.kind) == row.request;
    if (is_request) {
      request_ = envelope.sequence;
      requester_ = envelope.sender;
    }
    const bool wants_request =
        fault == Fault::kRequestLost || (fault != Fault::kReplyLost && row.kind == row.request);
    const bool is_reply = !is_request && request_.has_value() && envelope.sender != requester_ &&
                          (row.reply.has_value() ? envelope.reply_to == *request_
                                                 : envelope.acknowledged >= *request_);
    if (wants_request ? !is_request : !is_reply) {
      return FrameFate::kCarried;
    }
    if (!wants_request && row.reply.has_value()) {
      EXPECT_EQ(static_cast<MessageKind>(envelope.kind), *row.reply);
    }
    hit_at_ = now();
    hit_sender_ = envelope.sender;
    cut_off_ = fault == Fault::kCutOff;
    switch (fault) {
      case Fault::kReplyLost: return row.reply.has_value() ? FrameFate::kLost : FrameFate::kBroken;
      case Fault::kDuplicated: return FrameFate::kRepeated;
      case Fault::kReordered: return FrameFate::kReordered;
      case Fault::kDelayed: return FrameFate::kDelayed;
      case Fault::kCorrupted: return FrameFate::kDamaged;
      case Fault::kDisconnected: return FrameFate::kBroken;
      case Fault::kRequestLost:
      case Fault::kCutOff: break;
    }
    return FrameFate::kLost;
  }
  // Sends a message that overtakes the one that is reordered.
  void overtake() {
    if (hit_sender_ == 0) {
      ports_.owner->tell(MessageKind::kStopWorker, to_wire(actors::StartedWorker{"missing-0", 9}));
    } else {
      ports_.worker->tell(MessageKind::kLogLine, to_wire(actors::LogLine{"next"}));
    }
    drain();
  }
  // Replies to what has arrived at the stream and at the device.
  void serve() {
    for (; !stream_->leases.empty(); ++leases_) {
      actors::LeaseReply rows;
      rows.rows.emplace_back().columns = {{{0}, tensor().data}, {{1}, tensor().data}};
      ASSERT_EQ(rows.rows[0].columns.size(), std::size_t{kLentCells});
      take(stream_->leases).reply(rows);
    }
    for (; !device_->generations.empty(); ++generations_) {
      take(device_->generations).reply({});
    }
    for (; !device_->loads.empty(); ++loads_) {
      auto pending = take(device_->loads);
      pending.reply(pending.request.version);
    }
    for (; !device_->adapter_requests.empty(); ++adapter_requests_) {
      take(device_->adapter_requests).reply({});
    }
    drain();
  }
  [[nodiscard]] bool done() const { return effects_() > 0 && (!replies_ || replies_() > 0); }

  // -- what must hold
  // ------------------------------------------------------------------------------

  // Passes time until everything that may happen has happened.
  void pass_time(const Row& row, Fault fault) {
    for (Duration passed{}; passed < kEnd; passed += kStep) {
      serve();
      if (hit_at_.has_value() && fault == Fault::kReordered && !overtaken_) {
        overtaken_ = true;
        overtake();
      }
      if (!done_at_.has_value() && done()) {
        done_at_ = now();
      }
      if (cut_off_ && replies_ && now() - *hit_at_ >= std::min(row.deadline, Duration(30s))) {
        EXPECT_EQ(replies_(), 1) << "not by its deadline";
      }
      advance(kStep);
    }
    serve();
  }
  void expect_done_once(const Row& row) {
    EXPECT_EQ(effects_(), 1);
    EXPECT_EQ(row.reply.has_value(), static_cast<bool>(replies_));
    if (replies_) {
      EXPECT_EQ(replies_(), 1);
      EXPECT_EQ(status_().code(), expected_) << status_().to_string();
    }
    EXPECT_EQ(buffers_->loans(), 0U);
    EXPECT_EQ(gate_ends_, 0);
    EXPECT_EQ(host_ends_, 0);
    EXPECT_EQ(std::ranges::count(log_, "next"), overtaken_ && hit_sender_ != 0 ? 1 : 0);
  }
  // The link has ended, and what it has kept waiting has failed.
  void expect_failed_once() {
    EXPECT_LE(effects_(), 1);
    if (replies_) {
      EXPECT_EQ(replies_(), 1);
      EXPECT_TRUE(status_().code() == Errc::kTimeout || status_().code() == Errc::kUnavailable)
          << status_().to_string();
    }
    EXPECT_EQ(gate_ends_, 1);
    EXPECT_EQ(host_ends_, 1);
  }
  // The fault has changed what the sessions did. If not, the cell has tested nothing.
  void expect_the_fault(const Row& row, Fault fault) {
    const auto owner = ports_.owner->status().counts;
    const auto worker = ports_.worker->status().counts;
    if (fault == Fault::kReplyLost && !row.reply.has_value()) {
      // The first frame of the next connection may acknowledge the message too.
      EXPECT_EQ(ports_.owner->status().problem, "the network has broken the connection");
      return;
    }
    switch (fault) {
      case Fault::kRequestLost:
      case Fault::kReplyLost:
      case Fault::kReordered:
      case Fault::kCorrupted:
      case Fault::kDisconnected: EXPECT_GE(owner.resent + worker.resent, 1U); break;
      case Fault::kDuplicated: EXPECT_EQ(owner.ignored + worker.ignored, 1U); break;
      case Fault::kDelayed:
        EXPECT_EQ(owner.resent + worker.resent, 0U);
        ASSERT_TRUE(done_at_.has_value());
        EXPECT_GE(*done_at_ - *hit_at_, kDelay);
        break;
      case Fault::kCutOff: break;
    }
  }

  std::optional<SimulatedPeers> peers_;
  SimulatedPeers::Ports ports_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<LocalBuffers> buffers_ = std::make_shared<LocalBuffers>();
  actors::StreamActor stream_handle_;
  actors::DeviceActor device_handle_;
  actors::WorkerGateActor gate_;
  actors::WorkerHostActor host_;
  actors::ServingActor serving_;           // the device, as the owner sees it
  actors::StreamConsumerActor consumers_;  // the stream, as the worker sees it
  actors::RemoteWorkerActor worker_;       // stands for the first of `workers_`
  std::vector<caf::actor> workers_;
  int drained_ = 0;
  int worker_ends_ = 0;
  int leases_ = 0;
  int generations_ = 0;
  int loads_ = 0;
  int adapter_requests_ = 0;
  int row_memories_ = 0;
  std::vector<std::string> log_;
  int gate_ends_ = 0;
  int host_ends_ = 0;

  std::function<int()> replies_;  // empty: the message has none
  std::function<Status()> status_;
  std::function<int()> effects_;
  Errc expected_ = Errc::kOk;

  std::optional<std::uint64_t> request_;  // its number, once it was sent
  std::uint32_t requester_ = 0;
  std::optional<TimePoint> hit_at_;  // when the fault came
  std::uint32_t hit_sender_ = 0;     // who has sent the frame
  bool cut_off_ = false;
  int device_starts_ = 0;
  bool overtaken_ = false;
  std::optional<TimePoint> done_at_;
};

const std::vector<MessageFaultTest::Row>& MessageFaultTest::rows() {
  using Kind = MessageKind;
  using Test = MessageFaultTest;
  constexpr auto kLeaseDeadline = 5s + actors::kReplyMargin;
  static const std::vector<Row> rows = {
      {Kind::kFailure, Kind::kAck, Kind::kFailure, &Test::failing_ack},
      {Kind::kDone, Kind::kStartWorker, Kind::kDone, &Test::start_worker,
       actors::kWorkerStartDeadline},
      {Kind::kLease, Kind::kLease, Kind::kLeaseReply, &Test::lease, kLeaseDeadline},
      {Kind::kLeaseReply, Kind::kLease, Kind::kLeaseReply, &Test::lease, kLeaseDeadline},
      {Kind::kAck, Kind::kAck, Kind::kSettlement, &Test::ack},
      {Kind::kNack, Kind::kNack, Kind::kSettlement, &Test::nack},
      {Kind::kRenew, Kind::kRenew, Kind::kSettlement, &Test::renew},
      {Kind::kRetire, Kind::kRetire, Kind::kSettlement, &Test::retire},
      {Kind::kSettlement, Kind::kAck, Kind::kSettlement, &Test::ack},
      {Kind::kGenerate, Kind::kGenerate, Kind::kRolloutResult, &Test::generate, 25h},
      {Kind::kRolloutResult, Kind::kGenerate, Kind::kRolloutResult, &Test::generate, 25h},
      {Kind::kCancel, Kind::kCancel, std::nullopt, &Test::cancel},
      {Kind::kLoad, Kind::kLoad, Kind::kLoaded, &Test::load, actors::kRemoteChangeDeadline},
      {Kind::kLoaded, Kind::kLoad, Kind::kLoaded, &Test::load, actors::kRemoteChangeDeadline},
      {Kind::kAdapters, Kind::kAdapters, Kind::kAdapterList, &Test::adapters,
       actors::kRemoteChangeDeadline},
      {Kind::kAdapterList, Kind::kAdapters, Kind::kAdapterList, &Test::adapters,
       actors::kRemoteChangeDeadline},
      {Kind::kServingEnded, Kind::kServingEnded, std::nullopt, &Test::end_serving},
      {Kind::kStartDevice, Kind::kStartDevice, Kind::kDone, &Test::start_device,
       actors::kDeviceStartDeadline},
      {Kind::kStartWorker, Kind::kStartWorker, Kind::kDone, &Test::start_worker,
       actors::kWorkerStartDeadline},
      {Kind::kDrainWorker, Kind::kDrainWorker, std::nullopt, &Test::drain_worker},
      {Kind::kStopWorker, Kind::kStopWorker, std::nullopt, &Test::stop_worker},
      {Kind::kWorkerEnded, Kind::kWorkerEnded, std::nullopt, &Test::end_worker},
      {Kind::kLogLine, Kind::kLogLine, std::nullopt, &Test::log},
      {Kind::kRowMemory, Kind::kRowMemory, std::nullopt, &Test::row_memory},
  };
  return rows;
}

// The cells are those of all kinds and all faults, so none can be missing but with its row.
TEST_P(MessageFaultTest, HasOneReplyAndOneEffect) {
  const auto& [kind, fault] = GetParam();
  const auto row = std::ranges::find(rows(), kind, &Row::kind);
  ASSERT_NE(row, rows().end()) << "kind " << actors::name_of(kind) << " has no row in this table";
  peers_->network().set_fates(
      [this, row, fault = fault.first](const Buffer& frame) { return fate_of(*row, fault, frame); },
      kDelay);
  (this->*row->send)();
  drain();
  pass_time(*row, fault.first);
  ASSERT_TRUE(hit_at_.has_value()) << "the frame was not sent";
  if (fault.first == Fault::kCutOff) {
    expect_failed_once();
  } else {
    expect_done_once(*row);
    expect_the_fault(*row, fault.first);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MessageFaultTest,
                         ::testing::Combine(::testing::ValuesIn(all_kinds()),
                                            ::testing::ValuesIn(kFaults)),
                         [](const auto& cell) {
                           return actors::name_of(std::get<0>(cell.param)) +
                                  std::get<1>(cell.param).second;
                         });

TEST(MessageFaultTable, HasARowForEachKind) {
  std::vector<std::string> kinds;
  for (const MessageKind kind : all_kinds()) {
    kinds.push_back(actors::name_of(kind));
  }
  std::vector<std::string> rows;
  for (const MessageFaultTest::Row& row : MessageFaultTest::rows()) {
    rows.push_back(actors::name_of(row.kind));
  }
  EXPECT_EQ(rows, kinds);
  EXPECT_EQ(std::size(kFaults), 8U);
}

}  // namespace
}  // namespace tidemill::test
