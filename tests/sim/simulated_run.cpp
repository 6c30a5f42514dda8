// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulated_run.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "actors/remote/remote_device.hpp"
#include "tests/sim/commit_witness.hpp"
#include "tests/sim/mixing_rollout_engine.hpp"
#include "tests/sim/sample_witness.hpp"
#include "tests/sim/simulated_parts.hpp"
#include "tests/sim/version_witness.hpp"
#include "tests/support/deterministic_system.hpp"
#include "tests/support/simulated_processes.hpp"
#include "tests/support/simulated_servers.hpp"
#include "workflows/processes/worker_processes.hpp"
#include "workflows/rl/composition.hpp"

namespace tidemill::test {
namespace {

using actors::RunParts;
using actors::StepRecord;
using actors::StreamStatus;
using workflows::RlEngines;

constexpr std::uint64_t kMaxEvents = 200'000;
constexpr std::uint64_t kMaxEventsOfNetworks = 1'000'000;  // heartbeats are events too
constexpr std::uint64_t kTypicalEvents = 1'500;            // kills happen within this many
constexpr std::uint64_t kTypicalCommits = 3;               // and failures within this many saves
constexpr std::uint64_t kTypicalAppends = 5;               // or appends
constexpr std::uint64_t kTypicalLoads = 6;                 // or loads of new weights
constexpr std::uint32_t kUntrainedBatches = 4;  // after which a run without a signal ends

constexpr std::uint64_t kGroupBytes = 16'384;  // more than any group takes
constexpr Duration kLease = std::chrono::seconds(2);
constexpr Duration kCalmHurry = kLease / 8;  // no reason to lose a lease
constexpr double kLeaseSeconds = std::chrono::duration<double>(kLease).count();

// The loads of new weights that fail, counted over all devices and incarnations of a run.
struct LoadFaults {
  std::set<std::uint64_t> refused;
  std::uint64_t num_loads = 0;
  std::uint64_t num_refused = 0;
};

// Refuses some loads, counts requests, and passes all other calls to another engine.
class RefusingLoads final : public engines::RolloutEngine {
public:
  RefusingLoads(std::unique_ptr<engines::RolloutEngine> inner, std::shared_ptr<LoadFaults> faults,
                std::uint64_t& num_requests)
      : inner_(std::move(inner)), faults_(std::move(faults)), num_requests_(num_requests) {}
  Status submit(engines::RolloutRequest request, engines::RolloutSink& sink) override {
    ++num_requests_;
    return inner_->submit(std::move(request), sink);
  }
  void cancel(SampleId id) override { inner_->cancel(id); }
  Status load(engines::Snapshot snapshot, engines::WeightArrival arrival) override {
    if (faults_->refused.contains(++faults_->num_loads)) {
      ++faults_->num_refused;
      return {Errc::kInternal, "simulated: the device cannot load " + to_string(snapshot.version)};
    }
    return inner_->load(std::move(snapshot), arrival);
  }
  [[nodiscard]] PolicyVersion serving_version() const override { return inner_->serving_version(); }
  [[nodiscard]] bool has_work() const override { return inner_->has_work(); }
  Result<engines::StepReport> step(const engines::StepBudget& budget) override {
    return inner_->step(budget);
  }

private:
  std::unique_ptr<engines::RolloutEngine> inner_;
  std::shared_ptr<LoadFaults> faults_;
  std::uint64_t& num_requests_;
};

struct OwnedEngines {
  std::unique_ptr<engines::RolloutEngine> rollout;
  std::vector<std::unique_ptr<engines::RolloutEngine>> servers;
  std::unique_ptr<engines::TrainingJob> train;
};

bool has_faults(const transport::LoopbackFaults& network) {
  return network.lost > 0.0 || network.damaged > 0.0 || network.broken > 0.0 ||
         network.max_delay > Duration::zero();
}

class Simulation {
public:
  Simulation(const SimulationOptions& options, const FaultOptions& faults,
             std::shared_ptr<SimulatedDisk> disk)
      : options_(options),
        faults_(faults),
        random_(faults.seed, 2),
        disk_(std::move(disk)),
        append_faults_(std::make_shared<AppendFaults>()),
        witness_(replay_options(options), disk_->published, violator()),
        commit_witness_(options, *disk_, violator()),
        sample_witness_(options, violator()),
        world_(faults.seed, faults.max_hurry) {
    commits_ = std::make_shared<SimulatedCommits>(
        disk_, [this](const actors::RunCommit& commit) { commit_witness_.check_commit(commit); },
        choose(faults.failed_commits, kTypicalCommits), faults.full_from);
    // Forget the versions after the last commit: the new incarnation publishes versions of its own.
    std::erase_if(disk_->published, [this](const auto& entry) {
      return !disk_->last.has_value() ||
             entry.first.first > disk_->last->weights.version.incarnation;
    });
    append_faults_->refused = choose(faults.failed_records, kTypicalAppends);
    const auto latency_below = [this](Duration most) {
      const auto us = std::chrono::duration_cast<std::chrono::microseconds>(most).count();
      return [this, below = static_cast<std::uint64_t>(us)] {
        return std::chrono::microseconds(random_.below(below));
      };
    };
    const auto latency = latency_below(std::chrono::milliseconds(2));
    const auto reward_latency = latency_below(options.reward_delay);
    device_port_ =
        actors::make_simulated_work_port(world_.system(), latency_below(options.device_delay));
    io_port_ = actors::make_simulated_work_port(world_.system(), [this, latency] {
      const auto most = static_cast<std::uint64_t>(options_.source_delay.count());
      return latency() + Duration{most == 0 ? 0 : random_.below(most)};
    });
    commit_port_ = actors::make_simulated_work_port(world_.system(), latency);
    for (std::uint32_t i = 0; i < options.reward_workers; ++i) {
      reward_ports_.push_back(actors::make_simulated_work_port(world_.system(), reward_latency));
    }
    eval_port_ = actors::make_simulated_work_port(world_.system(), reward_latency);
    for (std::uint32_t i = 0; i < faults.kills; ++i) {
      kill_at_.insert(random_.below(kTypicalEvents));
    }
    for (std::uint32_t i = 0; i < faults.process_kills; ++i) {
      kill_process_at_.insert(random_.below(kTypicalEvents));
    }
    for (std::uint32_t i = 0; i < options.servers; ++i) {
      server_ports_.push_back(
          actors::make_simulated_work_port(world_.system(), latency_below(options.device_delay)));
    }
    lend_port_ = actors::make_simulated_work_port(world_.system(), latency);
    load_faults_->refused = choose(faults.failed_loads, kTypicalLoads);
    for (std::uint32_t i = 0; i < faults.worker_changes; ++i) {
      change_at_.insert(random_.below(kTypicalEvents));
    }
    for (std::uint32_t i = 0; i < faults.late_devices; ++i) {
      join_at_.insert(random_.below(kTypicalEvents));
      late_ports_.push_back(
          actors::make_simulated_work_port(world_.system(), latency_below(options.device_delay)));
    }
    for (std::uint32_t i = 0; i < faults.device_leaves; ++i) {
      leave_at_.insert(random_.below(kTypicalEvents));
    }
  }

  SimulationReport run() {
    const auto supervisor = workflows::spawn_rl_run(world_.system(), plan(), hooks());
    caf::anon_send(supervisor, atom::start_v);
    while (!ended_) {
      if (report_.events == max_events()) {
        violate("the run did not end within the event limit");
        caf::anon_send_exit(supervisor, caf::exit_reason::kill);
        kill_all();
        break;
      }
      if (kill_at_.contains(report_.events)) {
        kill_one();
      }
      if (kill_process_at_.contains(report_.events)) {
        kill_process();
      }
      if (change_at_.contains(report_.events)) {
        change_workers(supervisor);
      }
      if (join_at_.contains(report_.events)) {
        add_device();
      }
      if (leave_at_.contains(report_.events)) {
        remove_device();
      }
      if (faults_.stop_at != 0 && faults_.stop_at == report_.events) {
        caf::anon_send(supervisor, atom::stop_v);
      }
      if (!world_.step() && !ended_) {
        violate("no message or timeout is left, but the run has not ended");
        kill_all();
        break;
      }
      ++report_.events;
    }
    if (ended_ && report_.end_error.empty()) {
      commit_witness_.check_end(report_.steps, report_.weights_digest);
      report_.all_evaluated = commit_witness_.all_evaluated(report_.steps);
    }
    end_late_devices();
    if (processes_ != nullptr) {
      report_.processes = processes_->num_started();
      processes_->end();
    }
    if (servers_ != nullptr) {
      report_.processes += servers_->num_started();
      servers_->end();
    }
    report_.commits_refused = commits_->num_refused();
    report_.appends_refused = append_faults_->num_refused;
    report_.rewards_refused = reward_faults_->num_refused;
    report_.loads_refused = load_faults_->num_refused;
    check_calm();
    report_.tokens_checked = witness_.tokens_checked();
    report_.rewards_checked = sample_witness_.rewards_checked();
    report_.commits_checked = commit_witness_.commits_checked();
    report_.bests_checked = commit_witness_.bests_checked();
    return std::move(report_);
  }

private:
  // Returns up to `count` different numbers from 1 to `below`.
  std::set<std::uint64_t> choose(std::uint32_t count, std::uint64_t below) {
    std::set<std::uint64_t> numbers;
    for (std::uint32_t i = 0; i < count; ++i) {
      numbers.insert(1 + random_.below(below));
    }
    return numbers;
  }

  [[nodiscard]] std::uint64_t max_events() const {
    const bool network = options_.reward_processes > 0 || options_.rollout_processes > 0 ||
                         options_.remote_servers > 0;
    return network ? kMaxEventsOfNetworks : kMaxEvents;
  }

  void violate(const std::string& what) {
    if (report_.violations.size() < 5) {
      report_.violations.push_back("event " + std::to_string(report_.events) + ": " + what);
    }
  }

  // Without an injected fault nothing restarts, and no row is delivered twice, but for a row that
  // could not be scored or that a drained worker left.
  void check_calm() {
    report_.calm = faults_.max_hurry <= kCalmHurry && report_.kills == 0 &&
                   report_.commits_refused == 0 && report_.appends_refused == 0 &&
                   report_.loads_refused == 0 && report_.workers_removed == 0 &&
                   report_.process_kills == 0 && !has_faults(faults_.network);
    if (!report_.calm) {
      return;
    }
    if (report_.restarts != 0 || report_.worker_deaths != 0) {
      violate("an actor has ended although no fault was injected");
    }
    if (report_.rows_redelivered > report_.rewards_refused + report_.rows_left) {
      violate("rows delivered again: " + std::to_string(report_.rows_redelivered) +
              ", but rewards refused: " + std::to_string(report_.rewards_refused));
    }
  }

  std::function<void(const std::string&)> violator() {
    return [this](const std::string& what) { violate(what); };
  }

  // Returns an engine that starts with `weights`, and counts its requests.
  std::unique_ptr<engines::RolloutEngine> rollout_engine(const engines::Snapshot& weights,
                                                         std::uint64_t& num_requests) {
    const engines::ReplayOptions replay = replay_options(options_);
    auto engine = std::make_unique<RefusingLoads>(
        options_.mix_versions ? make_mixing_rollout_engine(replay, weights)
                              : engines::make_replay_rollout_engine(replay, weights),
        load_faults_, num_requests);
    return witness_.watch(std::move(engine), weights_at_start_,
                          options_.mix_versions ? VersionWitness::Order::kOldestFirstInAResponse
                                                : VersionWitness::Order::kNeverOlder);
  }

  Result<std::shared_ptr<RlEngines>> open_engines(const actors::RunOrigin& origin) {
    commit_witness_.check_host_and_origin(origin.commit);
    engines::Snapshot weights = origin.commit.has_value()
                                    ? origin.commit->weights
                                    : engines::replay_initial_snapshot(options_.data_seed);
    auto owned = std::make_shared<OwnedEngines>();
    weights.version.incarnation = origin.incarnation;
    weights_at_start_ = weights;
    const engines::ReplayOptions replay = replay_options(options_);
    owned->train = engines::make_replay_training_job(replay, weights);
    owned->rollout = rollout_engine(weights, num_requests_);
    for (std::uint32_t i = 0; i < options_.servers; ++i) {
      owned->servers.push_back(rollout_engine(weights, num_requests_));
    }
    if (origin.commit.has_value()) {
      TIDEMILL_RETURN_IF_ERROR(owned->train->load(weights, origin.commit->optimizer));
    }
    auto opened = std::make_shared<RlEngines>();
    opened->training = {{owned->rollout.get(), nullptr, nullptr}, owned->train.get(), nullptr};
    for (const auto& server : owned->servers) {
      opened->serving_devices.push_back({server.get(), nullptr, nullptr});
    }
    opened->runtime = owned;
    last_step_ = weights.version.step;
    opened->owner.weights = std::move(weights);
    opened->owner.records = std::make_shared<SimulatedRecords>(
        disk_, append_faults_,
        origin.commit.has_value() ? origin.commit->records : actors::RecordMarks{});
    return opened;
  }

  workflows::RlPlan plan() {
    workflows::RlPlan plan;
    plan.owner.log = [this](const std::string& line) {
      if (line.find("restarting from the last commit") != std::string::npos) {
        ++report_.restarts;
      } else if (line.find("will be restarted") != std::string::npos) {
        ++report_.worker_deaths;
      } else if (line.find("is quarantined") != std::string::npos) {
        ++report_.quarantines;
      } else if (line.find(" has joined") != std::string::npos) {
        ++report_.devices_joined;
      } else if (line.find(" has left") != std::string::npos) {
        ++report_.devices_left;
      } else if (line.find(" was added") != std::string::npos) {
        ++report_.workers_added;
      } else if (line.find(" was drained") != std::string::npos) {
        ++report_.workers_drained;
      } else if (line.find(" was removed") != std::string::npos) {
        ++report_.workers_removed;
      }
    };
    plan.owner.inform = plan.owner.log;
    plan.rollout.workers = options_.rollout_workers;
    plan.reward.workers = options_.reward_workers;
    plan.owner.max_concurrent_rows = 1000;
    plan.owner.stream.group_size = options_.group_size;
    plan.owner.stream.max_staleness = options_.max_staleness;
    plan.owner.stream.on_failed = options_.on_failed;
    plan.owner.stream.lease = kLease;
    plan.owner.stream.group_bytes = kGroupBytes;
    plan.owner.stream.limit_bytes = options_.stream_groups * kGroupBytes;
    plan.owner.trainer.groups_per_step = options_.groups_per_step;
    plan.owner.trainer.total_steps = options_.steps;
    plan.owner.trainer.max_staleness = options_.max_staleness;
    plan.owner.trainer.fixed_batches = options_.generation_order == actors::GenerationOrder::kFixed;
    plan.owner.trainer.commit_every = options_.commit_every;
    plan.owner.trainer.eval_every = options_.eval_every;
    plan.owner.trainer.best = options_.best;
    if (options_.never_signal) {
      plan.owner.trainer.max_untrained_batches = kUntrainedBatches;
    }
    if (options_.eval_every != 0) {
      plan.owner.evaluator = evaluator();
    }
    plan.rollout.on_device_failure = options_.on_device_failure;
    // With a fixed order, any worker can hold all rows in flight; see `rollout_role_options`.
    plan.rollout.worker.max_in_flight =
        options_.generation_order == actors::GenerationOrder::kFixed
            ? static_cast<std::uint32_t>(options_.max_staleness + 1) * options_.groups_per_step *
                  options_.group_size
            : 8;
    plan.rollout.worker.seed = options_.data_seed;
    plan.rollout.worker.max_new_tokens = kMaxNewTokens;
    plan.open_engines = [this](const actors::RunOrigin& origin) { return open_engines(origin); };
    plan.reward.make_reward = [this](std::optional<std::uint32_t> worker) {
      return worker.has_value()
                 ? std::make_shared<FlakyRewards>(options_, reward_faults_)
                 : std::shared_ptr<engines::RewardEngine>(simulated_rewards(options_));
    };
    plan.owner.reward_parts.assign(kRewardParts, kRewardParts + options_.reward_weights.size());
    plan.owner.reader = std::make_shared<SimulatedPrompts>(options_);
    plan.owner.commits = commits_;
    plan.owner.decide = [options = options_](std::span<const actors::GroupMember> group) {
      return simulated_decision(group, options);
    };
    plan.owner.make_loss =
        [](std::span<const engines::TrainSequence>) -> Result<std::unique_ptr<engines::TokenLoss>> {
      return std::unique_ptr<engines::TokenLoss>(std::make_unique<SimulatedLoss>());
    };
    plan.owner.decode = simulated_text;
    plan.reward.decode = simulated_text;
    plan.owner.make_reward = plan.reward.make_reward;
    plan.owner.observer = [this](const StepRecord& record) { check_step(record); };
    plan.owner.inspector = [this](const Status& status, const StreamStatus& counts) {
      check_stream(status, counts);
    };
    plan.owner.device_port = device_port_.get();
    for (const auto& port : server_ports_) {
      plan.rollout.device_ports.push_back(port.get());
    }
    plan.owner.io_port = io_port_.get();
    plan.owner.commit_port = commit_port_.get();
    for (const auto& port : reward_ports_) {
      plan.reward.ports.push_back(port.get());
    }
    plan.owner.eval_port = eval_port_.get();
    if (options_.reward_processes > 0 || options_.rollout_processes > 0) {
      move_workers(plan);
    }
    if (options_.remote_servers > 0) {
      servers_ = std::make_unique<SimulatedServers>(world_.system(), faults_.seed + 1,
                                                    faults_.network, *lend_port_);
      plan.remote_serving = [this](workflows::ServingDevices devices) {
        return servers_->move(std::move(devices), options_.remote_servers);
      };
    }
    return plan;
  }

  // Lets workers of a run work in processes of their own.
  void move_workers(workflows::RlPlan& plan) {
    processes_ = std::make_unique<SimulatedProcesses>(
        world_.system(), faults_.seed, faults_.network,
        [this, rollout = plan.rollout, reward = plan.reward](const std::string& role,
                                                             const SimulatedProcess& process) {
          return role == "rollout" ? prepare_rollout(rollout, process)
                                   : prepare_reward(reward, process);
        });
    if (options_.reward_processes > 0) {
      workflows::WorkerProcessesOptions role;
      role.role = "reward";
      role.processes = options_.reward_processes;
      role.workers = options_.reward_workers;
      plan.remote_reward = [this, role](const actors::RunOrigin& origin,
                                        const actors::StreamConsumerActor& stream) {
        return workflows::remote_worker_factory(world_.system(), *processes_, role,
                                                origin.incarnation, stream);
      };
    }
    if (options_.rollout_processes > 0) {
      plan.remote_rollout = [this](const actors::RunOrigin& origin,
                                   const actors::StreamConsumerActor& stream,
                                   const actors::RosterActor& roster) {
        workflows::WorkerProcessesOptions role;
        role.role = "rollout";
        role.processes = options_.rollout_processes;
        role.workers = options_.rollout_workers;
        role.devices = workflows::ProcessDevices{{}, roster, lend_port_.get()};
        return workflows::remote_worker_factory(world_.system(), *processes_, role,
                                                origin.incarnation, stream);
      };
    }
  }

  static Result<actors::WorkerSpec> make_of(const workflows::WorkerFactory& factory,
                                            const std::string& kind, std::uint32_t number) {
    if (kind != factory.kind) {
      return Status(Errc::kNotFound, "no workers of kind " + kind);
    }
    return factory.make(number);
  }

  SimulatedProcesses::MakeWorker prepare_reward(const workflows::RewardRoleOptions& role,
                                                const SimulatedProcess& process) {
    return [factory = workflows::reward_worker_factory(world_.system(), role, {process.stream})](
               const std::string& kind, std::uint32_t number) {
      return make_of(factory, kind, number);
    };
  }

  // The process opens a device with weights that the run does not have. If a worker used it before
  // it has loaded the weights of the run, the witness would report the tokens.
  SimulatedProcesses::MakeWorker prepare_rollout(const workflows::RolloutRoleOptions& role,
                                                 const SimulatedProcess& process) {
    process_ports_.push_back(actors::make_simulated_work_port(
        world_.system(), [this] { return std::chrono::microseconds(random_.below(2000)); }));
    const auto device = std::make_shared<actors::ServingActor>();
    actors::DeviceHostDeps deps;
    deps.port = process.port;
    deps.work = process_ports_.back().get();
    deps.on_open = [device](const actors::ServingActor& opened) { *device = opened; };
    deps.open = [this, process,
                 port = deps.work](const actors::StartDevice&) -> Result<actors::OpenedDevice> {
      const auto engine = std::make_shared<std::unique_ptr<engines::RolloutEngine>>(rollout_engine(
          engines::replay_initial_snapshot(options_.data_seed + 1000), report_.late_requests));
      return actors::OpenedDevice{
          process.buffers, [this, engine, port, add = process.add] {
            const actors::ServingActor actor = actors::spawn_device(
                world_.system(),
                workflows::serving_deps({engine->get(), nullptr, nullptr}, engine, port));
            add(caf::actor_cast<caf::actor>(actor));
            return actor;
          }};
    };
    process.add(
        caf::actor_cast<caf::actor>(actors::spawn_device_host(world_.system(), std::move(deps))));
    return [this, role, device, stream = process.stream](
               const std::string& kind, std::uint32_t number) -> Result<actors::WorkerSpec> {
      if (!*device) {
        return Status(Errc::kUnavailable, "the process has not opened its device");
      }
      return make_of(workflows::rollout_worker_factory(world_.system(), role, {stream, *device}),
                     kind, number);
    };
  }

  actors::EvaluatorDeps evaluator() const {
    actors::EvaluatorDeps deps;
    deps.decode = simulated_text;
    deps.prompts = SimulatedPrompts(options_.prompts).read(0, kEvalPrompts).value();
    deps.samples = kEvalSamples;
    deps.seed = options_.data_seed;
    deps.max_new_tokens = kMaxNewTokens;
    return deps;
  }

  workflows::RlHooks hooks() {
    workflows::RlHooks hooks;
    hooks.max_restarts = 1000;  // only a run without any progress may fail
    if (disk_->last.has_value()) {
      hooks.first_incarnation = disk_->last->weights.version.incarnation + 1;
    }
    hooks.on_end = [this](Result<actors::RunSummary> summary) {
      ended_ = true;
      if (summary.ok()) {
        report_.end = summary.value().end;
        report_.end_reason = summary.value().reason;
        report_.steps = summary.value().steps;
        report_.weights_digest = summary.value().weights.base_digest;
      } else {
        report_.end_error = summary.status().to_string();
      }
    };
    hooks.on_roster = [this](const actors::RosterActor& roster) {
      end_late_devices();  // those of the incarnation before
      roster_ = caf::actor_cast<caf::actor_addr>(roster);
    };
    hooks.on_spawn = [this](RunParts& parts) {
      alive_.clear();
      for (const actors::CorePart& part : parts.core) {
        alive_.push_back(caf::actor_cast<caf::actor_addr>(part.actor));
      }
      if (servers_ != nullptr) {
        const std::vector<caf::actor_addr> devices = servers_->devices();
        alive_.insert(alive_.end(), devices.begin(), devices.end());
      }
      for (actors::WorkerSpec& spec : parts.workers) {
        watch_worker(spec);
      }
      parts.make_worker = [this, make = parts.make_worker](const std::string& kind,
                                                           std::uint32_t number) {
        auto spec = make(kind, number);
        if (spec.ok()) {
          watch_worker(spec.value());
        }
        return spec;
      };
    };
    return hooks;
  }

  void watch_worker(actors::WorkerSpec& spec) {
    spec.spawn = [this, spawn = spec.spawn] {
      caf::actor worker = spawn();
      alive_.push_back(caf::actor_cast<caf::actor_addr>(worker));
      return worker;
    };
  }

  // Starts a device with weights that the run does not have, and asks the run to let it join. If
  // the run sent it a request before it has loaded the weights of the run, the witness would report
  // the tokens.
  void add_device() {
    const auto roster = caf::actor_cast<actors::RosterActor>(roster_);
    if (!roster || num_late_ == late_ports_.size()) {
      return;
    }
    const auto engine = std::make_shared<std::unique_ptr<engines::RolloutEngine>>(rollout_engine(
        engines::replay_initial_snapshot(options_.data_seed + 1000), report_.late_requests));
    workflows::RolloutRoleOptions role;
    role.device_ports = {late_ports_[num_late_].get()};
    auto started = workflows::start_serving_devices(world_.system(), role,
                                                    {{engine->get(), nullptr, nullptr}}, engine);
    actors::ServingDevice device = started.devices.front();
    device.name = "late-" + std::to_string(num_late_++);
    alive_.push_back(caf::actor_cast<caf::actor_addr>(device.actor));
    late_.push_back(alive_.back());
    caf::anon_send(roster, atom::join_v, actors::join_request(device));
  }

  // The supervisor does not know devices that joined.
  void end_late_devices() {
    for (const caf::actor_addr& address : std::exchange(late_, {})) {
      if (auto device = caf::actor_cast<caf::actor>(address)) {
        caf::anon_send_exit(device, caf::exit_reason::kill);
      }
    }
  }

  // Asks a device to leave. The roster refuses what it cannot do.
  void remove_device() {
    const std::vector<std::string> names{"device", "device-1", "device-2", "late-0", "late-1"};
    if (const auto roster = caf::actor_cast<actors::RosterActor>(roster_)) {
      caf::anon_send(roster, atom::leave_v, names.at(random_.below(names.size())));
    }
  }

  // Adds, drains or removes a worker. The supervisor refuses what it cannot do.
  void change_workers(const actors::SupervisorActor& supervisor) {
    const std::string kind = std::vector{"rollout", "reward", "advantage"}.at(random_.below(3));
    const std::string name = kind + "-" + std::to_string(random_.below(4));
    switch (random_.below(4)) {
      case 0: caf::anon_send(supervisor, atom::drain_v, name); break;
      case 1: caf::anon_send(supervisor, atom::remove_v, name); break;
      default: caf::anon_send(supervisor, atom::add_v, kind); break;
    }
  }

  void kill_one() {
    std::vector<caf::actor> candidates;
    for (const caf::actor_addr& address : alive_) {
      if (auto part = caf::actor_cast<caf::actor>(address)) {
        candidates.push_back(part);
      }
    }
    if (!candidates.empty()) {
      ++report_.kills;
      caf::anon_send_exit(candidates[random_.below(candidates.size())], caf::exit_reason::kill);
    }
  }

  void kill_process() {
    const bool server = servers_ != nullptr && (processes_ == nullptr || random_.below(2) == 0);
    if (server) {
      report_.process_kills += servers_->kill_one(random_) ? 1 : 0;
    } else if (processes_ != nullptr) {
      report_.process_kills += processes_->kill_one(random_) ? 1 : 0;
    }
  }

  void kill_all() {
    for (const caf::actor_addr& address : alive_) {
      if (auto part = caf::actor_cast<caf::actor>(address)) {
        caf::anon_send_exit(part, caf::exit_reason::kill);
      }
    }
  }

  // I1 (conservation) and I8 (bounds), after every message of the stream.
  void check_stream(const Status& status, const StreamStatus& counts) {
    ++report_.stream_checks;
    if (!status.ok()) {
      violate("stream: " + status.message());
    }
    if (counts.admitted !=
        counts.trained + counts.dropped + counts.filtered + counts.failed + counts.live) {
      violate("rows are lost: admitted=" + std::to_string(counts.admitted));
    }
    const std::uint64_t in_flight =
        (options_.max_staleness + 1) * options_.groups_per_step * options_.group_size;
    if (counts.live > in_flight) {
      violate("more rows are live than may be in flight: " + std::to_string(counts.live));
    }
    // `counts.redelivered` has those of the run that this one resumes, too.
    const storage::ReturnedDeliveries& returned = counts.returned;
    report_.rows_redelivered =
        std::max(report_.rows_redelivered, returned.left + returned.lost + returned.failed);
    report_.rows_left = std::max(report_.rows_left, returned.left);
  }

  // I2 (staleness) and I3 (versions) of every trained batch.
  void check_step(const StepRecord& record) {
    if (record.kind == "eval") {
      ++report_.evaluations;
      if (record.step > last_step_) {
        violate("an evaluation of weights that are not published yet");
      }
      return;
    }
    if (record.step != ++last_step_) {
      violate("step " + std::to_string(record.step) + " was recorded after step " +
              std::to_string(last_step_ - 1));
      last_step_ = record.step;
    }
    sample_witness_.check_batch(record);
    for (const actors::SampleRecord& sample : record.samples) {
      witness_.check_sample(sample.id, sample.versions, sample.response_ids,
                            sample.behavior_logprobs);
      witness_.check_sampling(sample.id, sample.versions, sample.response_ids);
      report_.mixed_samples += sample.versions.size() > 1 ? 1 : 0;
    }
    const auto held = record.metrics.find("train_seconds");
    report_.long_steps += held != record.metrics.end() && held->second > kLeaseSeconds ? 1 : 0;
    check_staleness_metric(record);
    const auto gap = record.metrics.find("logprob_gap_max");
    const auto compared = record.metrics.find("logprob_gap_tokens");
    // A probe that mixes versions cannot be compared.
    const bool none = compared != record.metrics.end() && compared->second <= 0.0;
    if (gap != record.metrics.end() && (gap->second != 0.0 || (none && !options_.mix_versions)) &&
        !record.samples.empty()) {
      violate("log-probabilities differ or were not compared at step " +
              std::to_string(record.step));
    }
  }

  // Checks that the metric `staleness_max` agrees with the samples.
  void check_staleness_metric(const StepRecord& record) {
    std::uint64_t stalest = 0;
    for (const actors::SampleRecord& sample : record.samples) {
      for (const engines::VersionSpan& span : sample.versions) {
        stalest = std::max(stalest, record.step - 1 - std::min(span.version.step, record.step - 1));
      }
    }
    const auto recorded = record.metrics.find("staleness_max");
    if (recorded == record.metrics.end() || recorded->second != static_cast<double>(stalest)) {
      violate("staleness_max of step " + std::to_string(record.step) + " is not " +
              std::to_string(stalest));
    }
  }

  SimulationOptions options_;
  FaultOptions faults_;
  RandomStream random_;
  SimulationReport report_;
  bool ended_ = false;
  std::vector<caf::actor_addr> alive_;
  std::vector<caf::actor_addr> late_;  // devices that joined
  std::multiset<std::uint64_t> kill_at_;
  std::multiset<std::uint64_t> kill_process_at_;
  std::set<std::uint64_t> change_at_;
  std::multiset<std::uint64_t> join_at_;
  std::set<std::uint64_t> leave_at_;
  caf::actor_addr roster_;              // of this incarnation
  engines::Snapshot weights_at_start_;  // of this incarnation
  std::uint64_t num_requests_ = 0;      // of devices that did not join
  std::size_t num_late_ = 0;            // devices that were started late
  std::shared_ptr<SimulatedDisk> disk_;
  std::shared_ptr<SimulatedCommits> commits_;
  std::shared_ptr<AppendFaults> append_faults_;
  std::shared_ptr<RewardFaults> reward_faults_ = std::make_shared<RewardFaults>();
  std::shared_ptr<LoadFaults> load_faults_ = std::make_shared<LoadFaults>();
  VersionWitness witness_;
  CommitWitness commit_witness_;
  SampleWitness sample_witness_;
  std::uint64_t last_step_ = 0;  // the last recorded step of this incarnation
  // The ports and the processes must outlive the actors, which the destructor of `world_` ends.
  std::unique_ptr<actors::WorkPort> device_port_;
  std::vector<std::unique_ptr<actors::WorkPort>> server_ports_;
  std::vector<std::unique_ptr<actors::WorkPort>> late_ports_;
  std::unique_ptr<actors::WorkPort> lend_port_;
  std::vector<std::unique_ptr<actors::WorkPort>> process_ports_;  // of rollout processes
  std::unique_ptr<actors::WorkPort> io_port_;
  std::unique_ptr<actors::WorkPort> commit_port_;
  std::vector<std::unique_ptr<actors::WorkPort>> reward_ports_;
  std::unique_ptr<actors::WorkPort> eval_port_;
  std::unique_ptr<SimulatedProcesses> processes_;  // null: the run has none
  std::unique_ptr<SimulatedServers> servers_;      // likewise
  DeterministicSystem world_;
};

}  // namespace

std::shared_ptr<SimulatedDisk> make_simulated_disk() {
  return std::make_shared<SimulatedDisk>();
}

SimulationReport simulate(const SimulationOptions& options, const FaultOptions& faults,
                          const std::shared_ptr<SimulatedDisk>& disk) {
  return Simulation(options, faults, disk).run();
}

}  // namespace tidemill::test
