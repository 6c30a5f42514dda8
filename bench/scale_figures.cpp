// SPDX-License-Identifier: Apache-2.0
#include "bench/scale_figures.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <pthread.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include <caf/all.hpp>

#include "actors/advantage/spawn.hpp"
#include "actors/algorithm/algorithm.hpp"
#include "actors/device/spawn.hpp"
#include "actors/remote/spawn.hpp"
#include "actors/reward/spawn.hpp"
#include "actors/rollout/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/spawn.hpp"
#include "base/check.hpp"
#include "bench/times.hpp"
#include "bench/two_processes.hpp"
#include "engines/replay/factory.hpp"
#include "engines/reward/factory.hpp"
#include "engines/rl/algorithm.hpp"
#include "transport/peer_link.hpp"
#include "transport/shm/shm_connection.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"

namespace tidemill::bench {
namespace {

using actors::SampleTask;

constexpr std::uint32_t kRunProcess = 0;
constexpr const char* kRolloutKind = "rollout";
constexpr std::int32_t kPromptTokens = 16;
constexpr auto kMaxRepetition = std::chrono::minutes(2);

// -- rollout workers ------------------------------------------------------------------------------

// Spawns a device with the replay engine, which works at `port`.
actors::ServingActor spawn_replay_device(caf::actor_system& system, const ScaleMeasure& how,
                                         actors::WorkPort& port) {
  engines::ReplayOptions options;
  options.slots = std::int64_t{1} << 20U;
  options.length_of = [tokens = how.response_tokens](SampleId) {
    return static_cast<std::uint32_t>(tokens);
  };
  const std::shared_ptr<engines::RolloutEngine> engine =
      engines::make_replay_rollout_engine(options, engines::replay_initial_snapshot(1));
  actors::DeviceDeps deps;
  deps.runtime = engine;
  deps.rollout = engine.get();
  deps.port = &port;
  return actors::spawn_device(system, std::move(deps));
}

// One of `workers`, which together can hold all rows in flight.
actors::RolloutWorkerDeps rollout_worker(const ScaleMeasure& how, std::uint32_t workers,
                                         std::uint32_t number) {
  const std::uint32_t rows = how.steps_in_flight * how.groups_per_step * how.group_size;
  actors::RolloutWorkerDeps deps;
  deps.name = std::string(kRolloutKind) + "-" + std::to_string(number);
  deps.max_in_flight = (rows + workers - 1) / workers;
  deps.max_new_tokens = how.response_tokens;
  return deps;
}

// Runs a rollout worker, as a rollout process does, until the process is killed.
void run_rollout(const ScaleMeasure& how, std::uint32_t processes,
                 const std::filesystem::path& socket, std::uint32_t process) {
  const auto work = workflows::start_port("device");
  TIDEMILL_CHECK(work.ok()) << work.status().message();
  const SystemClock clock;
  const std::unique_ptr<transport::Connector> connector = transport::make_shm_connector(socket);
  transport::PeerLinkThread links;
  workflows::ActorSystem actor_system;
  caf::actor_system& system = actor_system.system();
  const actors::ServingActor device = spawn_replay_device(system, how, *work.value());
  const auto port = std::make_shared<actors::PeerPort>(clock);
  const actors::StreamConsumerActor stream = actors::spawn_stream_proxy(system, port);
  actors::WorkerHostDeps deps;
  deps.port = port;
  deps.make_worker = [&](const std::string& kind,
                         std::uint32_t number) -> Result<actors::WorkerSpec> {
    actors::RolloutWorkerDeps worker = rollout_worker(how, processes, number);
    worker.stream = stream;
    worker.serving = device;
    return actors::WorkerSpec{
        worker.name,
        [&system, worker] {
          return caf::actor_cast<caf::actor>(actors::spawn_rollout_worker(system, worker));
        },
        kind};
  };
  deps.on_end = [](const std::string& /*reason*/) {};
  const actors::WorkerHostActor host = actors::spawn_worker_host(system, std::move(deps));
  transport::PeerLinkOptions link = link_options(process, kRunProcess);
  link.connector = connector.get();
  port->open(links.links(), link, caf::actor_cast<caf::strong_actor_ptr>(host));
  while (true) {
    ::pause();
  }
}

// -- the process of the run -----------------------------------------------------------------------

// Prompts without end.
class EndlessPrompts final : public actors::PromptReader {
public:
  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<actors::Prompt> prompts(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      prompts[i].draw = draw + i;
      prompts[i].ids.assign(kPromptTokens, static_cast<std::int32_t>((draw + i) % 100));
      prompts[i].prompt = "17 + 25 =";
      prompts[i].reference_answer = "1";
      prompts[i].fields = "{}";
    }
    return prompts;
  }
};

// Half of the responses match the reference answer.
std::string decode(const std::vector<std::int32_t>& ids) {
  return std::to_string(ids.front() % 2);
}

// What the main thread sees of the actors.
struct Progress {
  std::atomic<std::uint64_t> samples{0};  // that were trained
  std::atomic<bool> failed{false};
  std::atomic<clockid_t> actors_clock{0};  // of the thread of all actors; 0: it has not started
};

// A stand-in for the keeper and the trainer.
struct TrainerState {
  static inline const char* name = "keeper and trainer";
  TrainerState() = default;  // not an aggregate: CAF would build it from `self`

  ScaleMeasure how;
  Progress* progress = nullptr;
  actors::StreamActor stream;
  std::uint64_t next_group = 0;      // to admit
  std::uint64_t trained_groups = 0;  // and acked
  std::optional<std::pair<actors::AdmissionRequest, caf::typed_response_promise<actors::Admission>>>
      waiting;
};

using TrainerSelf = caf::stateful_actor<TrainerState>*;

void fail(TrainerSelf self) {
  self->state.progress->failed = true;
}

// Admits as many groups as may be in flight, if the source waits for them.
void admit(TrainerSelf self) {
  auto& state = self->state;
  const std::uint64_t limit =
      state.trained_groups + std::uint64_t{state.how.steps_in_flight} * state.how.groups_per_step;
  if (!state.waiting.has_value() || state.next_group == limit) {
    return;
  }
  auto [request, promise] = *std::exchange(state.waiting, std::nullopt);
  actors::Admission admission;
  admission.groups = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(limit - state.next_group, request.max_groups));
  admission.first_group = state.next_group;
  state.next_group += admission.groups;
  promise.deliver(std::move(admission));
}

void lease_batch(TrainerSelf self);

// Decodes what a trainer needs of a batch, and acks it.
void train(TrainerSelf self, const actors::LeaseReply& reply) {
  using enum actors::SampleColumn;
  actors::AckRequest ack{actors::task_id(SampleTask::kTrain), "trainer", {}};
  for (const storage::LeasedRow& row : reply.rows) {
    const bool complete = actors::read_cell<std::int32_t>(row, kPromptIds).ok() &&
                          actors::read_cell<std::int32_t>(row, kResponseIds).ok() &&
                          actors::read_cell<float>(row, kBehaviorLogprobs).ok() &&
                          actors::read_cell<float>(row, kAdvantage).ok();
    if (!complete) {
      fail(self);
    }
    ack.rows.push_back({row.lease, {}, {}});
  }
  self->request(self->state.stream, caf::infinite, atom::ack_v, std::move(ack))
      .then(
          [self](const storage::Settlement& settlement) {
            auto& state = self->state;
            if (!settlement.refused.empty()) {
              fail(self);
            }
            state.progress->samples += settlement.done.size();
            state.trained_groups += settlement.done.size() / state.how.group_size;
            admit(self);
            lease_batch(self);
          },
          [self](const caf::error& /*error*/) { fail(self); });
}

void lease_batch(TrainerSelf self) {
  const auto& state = self->state;
  actors::LeaseRequest request;
  request.task = actors::task_id(SampleTask::kTrain);
  request.consumer = "trainer";
  request.max_units = state.how.groups_per_step;
  request.min_units = state.how.groups_per_step;
  request.wait = std::chrono::seconds(5);
  self->request(state.stream, caf::infinite, atom::lease_v, std::move(request))
      .then(
          [self](const actors::LeaseReply& reply) {
            reply.rows.empty() ? lease_batch(self) : train(self, reply);
          },
          [self](const caf::error& /*error*/) { fail(self); });
}

caf::behavior keep_and_train(TrainerSelf self, const ScaleMeasure& how, Progress* progress) {
  self->state.how = how;
  self->state.progress = progress;
  return {
      [self](atom::admit, const actors::AdmissionRequest& request) {
        auto promise = self->make_response_promise<actors::Admission>();
        self->state.waiting.emplace(request, promise);
        admit(self);
        return promise;
      },
      [](atom::record, const storage::SlotChanges&) {},
      [self](atom::start, const caf::strong_actor_ptr& stream) {
        clockid_t clock{};
        if (::pthread_getcpuclockid(::pthread_self(), &clock) == 0) {
          self->state.progress->actors_clock = clock;
        }
        self->state.stream = caf::actor_cast<actors::StreamActor>(stream);
        lease_batch(self);
      },
  };
}

// The actors of a run, without a supervisor.
class ScaledRun {
public:
  ScaledRun(const ScaleMeasure& how, std::uint32_t processes, std::filesystem::path socket)
      : how_(how), processes_(processes), socket_(std::move(socket)) {}
  ScaledRun(const ScaledRun&) = delete;
  ScaledRun& operator=(const ScaledRun&) = delete;
  ~ScaledRun() {
    for (const caf::actor& actor : actors_) {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    }
    for (const auto& port : ports_) {
      port->close("measured");
    }
  }

  Status open() {
    caf::actor_system& system = actor_system_.system();
    const caf::actor trainer = keep(system.spawn(keep_and_train, how_, &progress_));
    actors::StreamDeps stream;
    stream.options.group_size = how_.group_size;
    stream.keeper = caf::actor_cast<actors::KeeperActor>(trainer);
    stream_ = actors::spawn_stream(system, std::move(stream));
    keep(stream_);
    TIDEMILL_RETURN_IF_ERROR(start_scorers());
    TIDEMILL_RETURN_IF_ERROR(start_rollout());
    TIDEMILL_ASSIGN_OR_RETURN(io_port_, workflows::start_port("io"));
    actors::PromptSourceDeps source;
    source.group_size = how_.group_size;
    source.stream = caf::actor_cast<actors::StreamProducerActor>(stream_);
    source.keeper = caf::actor_cast<actors::KeeperActor>(trainer);
    source.reader = std::make_shared<EndlessPrompts>();
    source.port = io_port_.get();
    caf::anon_send(keep(actors::spawn_prompt_source(system, std::move(source))), atom::start_v);
    caf::anon_send(trainer, atom::start_v, caf::actor_cast<caf::strong_actor_ptr>(stream_));
    return {};
  }

  [[nodiscard]] const Progress& progress() const { return progress_; }

private:
  template <class Actor>
  caf::actor keep(const Actor& actor) {
    actors_.push_back(caf::actor_cast<caf::actor>(actor));
    return actors_.back();
  }

  [[nodiscard]] actors::StreamConsumerActor consumer() const {
    return caf::actor_cast<actors::StreamConsumerActor>(stream_);
  }

  Status start_scorers() {
    TIDEMILL_ASSIGN_OR_RETURN(reward_port_, workflows::start_port("reward"));
    actors::RewardWorkerDeps reward;
    reward.stream = consumer();
    reward.max_in_flight = how_.groups_per_step * how_.group_size;  // a batch, as in a run
    TIDEMILL_ASSIGN_OR_RETURN(reward.engine, engines::make_reward_engine({}, clock_));
    reward.decode = decode;
    reward.port = reward_port_.get();
    keep(actors::spawn_reward_worker(actor_system_.system(), std::move(reward)));
    TIDEMILL_ASSIGN_OR_RETURN(const engines::Algorithm grpo, engines::find_algorithm("grpo"));
    actors::AdvantageWorkerDeps advantage;
    advantage.stream = consumer();
    advantage.decide = actors::make_group_decision(grpo);
    keep(actors::spawn_advantage_worker(actor_system_.system(), std::move(advantage)));
    return {};
  }

  // Starts the rollout worker here, or has each process start one.
  Status start_rollout() {
    caf::actor_system& system = actor_system_.system();
    if (processes_ == 0) {
      TIDEMILL_ASSIGN_OR_RETURN(device_port_, workflows::start_port("device"));
      const actors::ServingActor device = spawn_replay_device(system, how_, *device_port_);
      keep(device);
      actors::RolloutWorkerDeps worker = rollout_worker(how_, 1, 0);
      worker.stream = consumer();
      worker.serving = device;
      keep(actors::spawn_rollout_worker(system, std::move(worker)));
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(
        acceptor_,
        transport::listen_shm(socket_, [this](std::unique_ptr<transport::Connection> connection) {
          links_.links().accept(std::move(connection));
        }));
    for (std::uint32_t process = 1; process <= processes_; ++process) {
      ports_.push_back(std::make_shared<actors::PeerPort>(clock_));
      actors::WorkerGateDeps deps;
      deps.process = "rollout process " + std::to_string(process);
      deps.port = ports_.back();
      deps.stream = consumer();
      deps.on_end = [this](const Status& /*why*/) { progress_.failed = true; };
      const actors::WorkerGateActor gate = actors::spawn_worker_gate(system, std::move(deps));
      keep(gate);
      ports_.back()->open(links_.links(), link_options(kRunProcess, process),
                          caf::actor_cast<caf::strong_actor_ptr>(gate));
      const std::string name = std::string(kRolloutKind) + "-" + std::to_string(process - 1);
      keep(actors::spawn_remote_worker(system, gate, {name, kRolloutKind, process - 1}));
    }
    return {};
  }

  const ScaleMeasure how_;
  const std::uint32_t processes_;
  const std::filesystem::path socket_;
  const SystemClock clock_;
  Progress progress_;
  std::unique_ptr<actors::WorkPort> io_port_;
  std::unique_ptr<actors::WorkPort> reward_port_;
  std::unique_ptr<actors::WorkPort> device_port_;
  transport::PeerLinkThread links_;
  std::unique_ptr<transport::Acceptor> acceptor_;
  std::vector<std::shared_ptr<actors::PeerPort>> ports_;
  workflows::ActorSystem actor_system_;  // ends before what its actors use
  actors::StreamActor stream_;
  std::vector<caf::actor> actors_;
};

// -- figures --------------------------------------------------------------------------------------

// Processor times so far, in seconds.
struct ProcessorTimes {
  double owner = 0.0;
  double actors = 0.0;
  double rollout = 0.0;
};

double clock_seconds(clockid_t clock) {
  timespec time{};
  return ::clock_gettime(clock, &time) == 0
             ? static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)
             : 0.0;
}

using Processes = std::vector<std::unique_ptr<ForkedProcess>>;

ProcessorTimes processor_times(const Progress& progress, const Processes& processes) {
  ProcessorTimes times;
  times.owner = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
  times.actors = clock_seconds(progress.actors_clock);
  for (const auto& process : processes) {
    clockid_t clock{};
    if (::clock_getcpuclockid(process->pid(), &clock) == 0) {
      times.rollout += clock_seconds(clock);
    }
  }
  return times;
}

// Waits until so many more samples were trained. Returns how many were.
Result<std::uint64_t> wait_for_samples(const Progress& progress, std::uint64_t wanted) {
  const std::uint64_t before = progress.samples;
  const auto deadline = std::chrono::steady_clock::now() + kMaxRepetition;
  while (progress.samples < before + wanted) {
    if (progress.failed || std::chrono::steady_clock::now() > deadline) {
      return Status(Errc::kUnavailable, (progress.failed ? "a part of the run has failed after "
                                                         : "two minutes have passed after ") +
                                            std::to_string(progress.samples) + " samples");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return progress.samples - before;
}

Result<ScaleFigure> measure_processes(const ScaleMeasure& how, std::uint32_t count) {
  const std::filesystem::path socket =
      std::filesystem::temp_directory_path() / ("tidemill-bench-" + std::to_string(::getpid()));
  Processes processes;
  for (std::uint32_t process = 1; process <= count; ++process) {
    // Before any thread of this process.
    processes.push_back(
        std::make_unique<ForkedProcess>([&] { run_rollout(how, count, socket, process); }));
    if (!processes.back()->started()) {
      return Status(Errc::kUnavailable, "cannot start a process");
    }
  }
  ScaledRun run(how, count, socket);
  TIDEMILL_RETURN_IF_ERROR(run.open());
  const Progress& progress = run.progress();
  std::vector<double> rates;
  std::vector<double> owner;
  std::vector<double> actors;
  std::vector<double> rollout;
  for (std::uint32_t i = 0; i <= how.repetitions; ++i) {
    const ProcessorTimes before = processor_times(progress, processes);
    const auto start = std::chrono::steady_clock::now();
    TIDEMILL_ASSIGN_OR_RETURN(const std::uint64_t done, wait_for_samples(progress, how.samples));
    const double seconds = elapsed_seconds(start);
    const ProcessorTimes after = processor_times(progress, processes);
    if (i == 0) {
      continue;
    }
    const auto samples = static_cast<double>(done);
    rates.push_back(samples / seconds);
    owner.push_back(1e6 * (after.owner - before.owner) / samples);
    actors.push_back(1e6 * (after.actors - before.actors) / samples);
    rollout.push_back(1e6 * (after.rollout - before.rollout) / samples);
  }
  return ScaleFigure{count, median(rates), median(owner), median(actors), median(rollout)};
}

}  // namespace

Result<std::vector<ScaleFigure>> measure_scale(const ScaleMeasure& how) {
  std::vector<ScaleFigure> figures;
  std::vector<std::uint32_t> counts{0};
  counts.insert(counts.end(), how.processes.begin(), how.processes.end());
  for (const std::uint32_t count : counts) {
    TIDEMILL_ASSIGN_OR_RETURN(figures.emplace_back(), measure_processes(how, count));
  }
  return figures;
}

}  // namespace tidemill::bench
