// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulated_run.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/json.hpp"
#include "tests/sim/simulated_parts.hpp"
#include "tests/support/deterministic_system.hpp"
#include "workflows/rl/composition.hpp"

namespace tidemill::test {
namespace {

using actors::RunParts;
using actors::StepRecord;
using actors::StreamStatus;
using workflows::RlEngines;

constexpr std::uint64_t kMaxEvents = 200'000;
constexpr std::uint64_t kTypicalEvents = 1'500;  // kills fall within this many

struct OwnedEngines {
  std::unique_ptr<engines::RolloutEngine> rollout;
  std::unique_ptr<engines::TrainEngine> train;
};

class Simulation {
public:
  Simulation(const SimulationOptions& options, const FaultOptions& faults)
      : options_(options),
        faults_(faults),
        random_(faults.seed, 2),
        commits_(std::make_shared<SimulatedCommits>(faults.failed_commits)),
        text_(std::make_shared<SimulatedRecordText>()),
        world_(faults.seed) {
    const auto latency = [this] { return std::chrono::microseconds(random_.below(2000)); };
    device_port_ = actors::make_simulated_work_port(world_.system(), latency);
    io_port_ = actors::make_simulated_work_port(world_.system(), latency);
    commit_port_ = actors::make_simulated_work_port(world_.system(), latency);
    reward_port_ = actors::make_simulated_work_port(world_.system(), latency);
    for (std::uint32_t i = 0; i < faults.kills; ++i) {
      kill_at_.insert(random_.below(kTypicalEvents));
    }
  }

  SimulationReport run() {
    const auto supervisor = workflows::spawn_rl_run(world_.system(), plan(), hooks());
    caf::anon_send(supervisor, atom::start_v);
    while (!ended_) {
      if (report_.events == kMaxEvents) {
        violate("the run did not end within the event limit");
        caf::anon_send_exit(supervisor, caf::exit_reason::kill);
        kill_all();
        break;
      }
      if (kill_at_.contains(report_.events)) {
        kill_one();
      }
      if (!world_.step() && !ended_) {
        violate("nothing is left to happen, but the run has not ended");
        kill_all();
        break;
      }
      ++report_.events;
    }
    check_records();
    return std::move(report_);
  }

private:
  void violate(const std::string& what) {
    if (report_.violations.size() < 5) {
      report_.violations.push_back("event " + std::to_string(report_.events) + ": " + what);
    }
  }

  Result<std::shared_ptr<RlEngines>> open_engines(const actors::RunOrigin& origin) {
    engines::Snapshot weights = origin.commit.has_value()
                                    ? origin.commit->weights
                                    : engines::replay_initial_snapshot(options_.data_seed);
    auto owned = std::make_shared<OwnedEngines>();
    weights.version.incarnation = origin.incarnation;
    owned->rollout = engines::make_replay_rollout_engine(replay_options(options_), weights);
    owned->train = engines::make_replay_train_engine(replay_options(options_), weights);
    if (origin.commit.has_value()) {
      TIDEMILL_RETURN_IF_ERROR(owned->train->restore(weights, origin.commit->optimizer));
    }
    auto opened = std::make_shared<RlEngines>();
    opened->rollout = owned->rollout.get();
    opened->train = owned->train.get();
    opened->runtime = owned;
    opened->weights = std::move(weights);
    opened->records = std::make_shared<SimulatedRecords>(
        text_, origin.commit.has_value() ? origin.commit->records : actors::RecordMarks{});
    return opened;
  }

  workflows::RlPlan plan() {
    workflows::RlPlan plan;
    plan.rollout_workers = options_.rollout_workers;
    plan.max_concurrent_rows = 1000;
    plan.stream.group_size = options_.group_size;
    plan.stream.max_staleness = options_.max_staleness;
    plan.stream.on_failed = options_.on_failed;
    plan.stream.lease = std::chrono::seconds(2);
    plan.trainer.groups_per_step = options_.groups_per_step;
    plan.trainer.total_steps = options_.steps;
    plan.trainer.max_staleness = options_.max_staleness;
    plan.trainer.fixed_batches = options_.schedule == actors::ScheduleKind::kFixed;
    plan.trainer.commit_every = options_.commit_every;
    plan.rollout.max_in_flight = 8;
    plan.rollout.seed = options_.data_seed;
    plan.rollout.max_new_tokens = kMaxNewTokens;
    plan.open_engines = [this](const actors::RunOrigin& origin) { return open_engines(origin); };
    plan.make_reward = [this](std::optional<std::uint32_t>) {
      return std::shared_ptr<engines::RewardEngine>(
          engines::make_replay_reward_engine(options_.data_seed, options_.one_in_fails));
    };
    plan.reader = std::make_shared<SimulatedPrompts>(options_.prompts);
    plan.commits = commits_;
    plan.decide = [filter = options_.filter](std::span<const actors::GroupMember> group) {
      return simulated_decision(group, filter);
    };
    plan.make_loss =
        [](std::span<const engines::TrainSequence>) -> Result<std::unique_ptr<engines::TokenLoss>> {
      return std::unique_ptr<engines::TokenLoss>(std::make_unique<SimulatedLoss>());
    };
    plan.decode = simulated_text;
    plan.observer = [this](const StepRecord& record) { check_step(record); };
    plan.inspector = [this](const Status& status, const StreamStatus& counts) {
      check_stream(status, counts);
    };
    plan.device_port = device_port_.get();
    plan.io_port = io_port_.get();
    plan.commit_port = commit_port_.get();
    plan.reward_ports = {reward_port_.get()};
    return plan;
  }

  workflows::RlHooks hooks() {
    workflows::RlHooks hooks;
    hooks.max_restarts = 1000;  // only a run that makes no progress at all may give up
    hooks.on_end = [this](Result<actors::RunSummary> summary) {
      ended_ = true;
      if (summary.ok()) {
        report_.steps = summary.value().steps;
        report_.weights_digest = summary.value().weights.base_digest;
      } else {
        report_.end_error = summary.status().to_string();
      }
    };
    hooks.log = [this](const std::string& line) {
      if (line.find("starting again from the last commit") != std::string::npos) {
        ++report_.restarts;
      } else if (line.find("is started again") != std::string::npos) {
        ++report_.worker_deaths;
      }
    };
    hooks.on_spawn = [this](RunParts& parts) {
      alive_.clear();
      for (const auto& [name, part] : parts.core) {
        alive_.push_back(caf::actor_cast<caf::actor_addr>(part));
      }
      for (actors::WorkerSpec& spec : parts.workers) {
        spec.spawn = [this, spawn = spec.spawn] {
          const caf::actor worker = spawn();
          alive_.push_back(caf::actor_cast<caf::actor_addr>(worker));
          return worker;
        };
      }
    };
    return hooks;
  }

  void kill_one() {
    std::vector<caf::actor> candidates;
    for (const caf::actor_addr& address : alive_) {
      if (auto part = caf::actor_cast<caf::actor>(address)) {
        candidates.push_back(part);
      }
    }
    if (!candidates.empty()) {
      caf::anon_send_exit(candidates[random_.below(candidates.size())], caf::exit_reason::kill);
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
    report_.rows_redelivered = std::max(report_.rows_redelivered, counts.redelivered);
  }

  // I2 (staleness) and I3 (no version from the future) of every trained batch.
  void check_step(const StepRecord& record) {
    const auto staleness = record.figures.find("staleness_max");
    if (staleness != record.figures.end() &&
        staleness->second > static_cast<double>(options_.max_staleness)) {
      violate("a batch was staler than allowed: " + std::to_string(staleness->second));
    }
    for (const actors::SampleRecord& sample : record.samples) {
      for (const engines::VersionSpan& span : sample.versions) {
        if (span.version.step >= record.step) {
          violate("sample " + std::to_string(sample.id.value) + " is of a later step");
        }
        if (options_.schedule == actors::ScheduleKind::kFixed) {
          const std::uint64_t batch = record.step - 1;
          const std::uint64_t due =
              batch > options_.max_staleness ? batch - options_.max_staleness : 0;
          if (span.version.step != due) {
            violate("batch " + std::to_string(batch) + " holds a token of step " +
                    std::to_string(span.version.step));
          }
        }
      }
    }
    const auto gap = record.figures.find("logprob_gap_max");
    const auto compared = record.figures.find("logprob_gap_tokens");
    if (gap != record.figures.end() && (gap->second != 0.0 || compared->second <= 0.0) &&
        !record.samples.empty()) {
      violate("log-probabilities differ or were not compared at step " +
              std::to_string(record.step));
    }
  }

  // I1 in the committed history: every row is trained exactly once, every step recorded once.
  void check_records() {
    std::set<std::int64_t> samples;
    std::size_t begin = 0;
    while (begin < text_->samples.size()) {
      const std::size_t end = text_->samples.find('\n', begin);
      const auto line = parse_json(std::string_view(text_->samples).substr(begin, end - begin));
      if (!line.ok()) {
        violate("a sample line cannot be read: " + line.status().message());
        return;
      }
      const std::int64_t id = *line.value().find("sample")->if_integer();
      if (!samples.insert(id).second) {
        violate("sample " + std::to_string(id) + " was trained twice");
      }
      begin = end + 1;
    }
    report_.rows_trained = samples.size();
    const auto lines = std::count(text_->metrics.begin(), text_->metrics.end(), '\n');
    if (report_.end_error.empty() && ended_ && static_cast<std::uint64_t>(lines) != report_.steps) {
      violate("steps recorded: " + std::to_string(lines) + " of " + std::to_string(report_.steps));
    }
  }

  SimulationOptions options_;
  FaultOptions faults_;
  RandomStream random_;
  SimulationReport report_;
  bool ended_ = false;
  std::vector<caf::actor_addr> alive_;
  std::multiset<std::uint64_t> kill_at_;
  std::shared_ptr<SimulatedCommits> commits_;
  std::shared_ptr<SimulatedRecordText> text_;
  // The ports outlive the actors, which the world's destructor ends.
  std::unique_ptr<actors::WorkPort> device_port_;
  std::unique_ptr<actors::WorkPort> io_port_;
  std::unique_ptr<actors::WorkPort> commit_port_;
  std::unique_ptr<actors::WorkPort> reward_port_;
  DeterministicSystem world_;
};

}  // namespace

SimulationReport simulate(const SimulationOptions& options, const FaultOptions& faults) {
  return Simulation(options, faults).run();
}

}  // namespace tidemill::test
