// SPDX-License-Identifier: Apache-2.0
// The parts that a simulated run uses in place of files: prompts, commits, records. Shared by the
// simulation and the plain loop that it is compared with.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/advantage/spawn.hpp"
#include "actors/commit/checkpoint_commits.hpp"
#include "actors/commit/run_commit.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "base/random.hpp"
#include "engines/replay/factory.hpp"
#include "engines/reward/factory.hpp"
#include "engines/training_job.hpp"
#include "tests/sim/simulated_run.hpp"

namespace tidemill::test {

inline constexpr std::int32_t kMaxNewTokens = 6;
inline constexpr std::uint64_t kPromptTokens = 3;
inline constexpr std::uint64_t kEvalPrompts = 2;
inline constexpr std::uint32_t kEvalSamples = 2;  // of each prompt
inline constexpr const char* kRewardParts[] = {"first", "second", "third"};

/// Makes each prompt from its draw. The data of a run skips some draws and may end.
class SimulatedPrompts final : public actors::PromptReader {
public:
  /// Data without an end, which skips nothing.
  explicit SimulatedPrompts(std::uint64_t prompts) : prompts_(prompts) {}
  /// The data of a run.
  explicit SimulatedPrompts(const SimulationOptions& options)
      : prompts_(options.prompts),
        end_(options.data_groups),
        seed_(options.data_seed),
        skip_one_in_(options.skip_one_in) {}

  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<actors::Prompt> prompts;
    for (std::uint64_t d = draw; prompts.size() < count && (end_ == 0 || d < end_); ++d) {
      if (skip_one_in_ != 0 && keyed_bits(seed_, d, 2) % skip_one_in_ == 0) {
        continue;
      }
      actors::Prompt prompt;
      prompt.draw = d;
      prompt.epoch = d / prompts_;
      prompt.position = d % prompts_;
      prompt.ids = {static_cast<std::int32_t>(prompt.position), 1, 2};
      prompt.prompt = "p" + std::to_string(prompt.position);
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

private:
  std::uint64_t prompts_;
  std::uint64_t end_ = 0;  // 0: never
  std::uint64_t seed_ = 0;
  std::uint64_t skip_one_in_ = 0;
};

/// Record files in memory. Opening them again cuts them back to the marks of the commit.
struct SimulatedRecordText {
  std::string metrics;
  std::string samples;
};

/// Digests of weights, by incarnation and step of their version.
using PublishedDigests = std::map<std::pair<std::uint32_t, std::uint64_t>, std::string>;

struct SimulatedDisk {
  std::optional<actors::RunCommit> last;
  // Only for the checks.
  PublishedDigests published;
  std::map<std::uint64_t, std::string> committed;  // digests in the committed history, by step
  SimulatedRecordText text;
};

/// Keeps the last commit in memory, after converting it to a checkpoint and back. `check` is called
/// with each commit before it becomes the last one. Saves are counted from 1: those in `refused`
/// fail, and all from `full_from` on fail for lack of space.
class SimulatedCommits final : public actors::CommitStore {
public:
  using Check = std::function<void(const actors::RunCommit&)>;

  SimulatedCommits(std::shared_ptr<SimulatedDisk> disk, Check check,
                   std::set<std::uint64_t> refused, std::uint64_t full_from)
      : disk_(std::move(disk)),
        check_(std::move(check)),
        refused_(std::move(refused)),
        full_from_(full_from) {}
  [[nodiscard]] std::optional<std::uint64_t> last_step() const override {
    const auto& last = disk_->last;
    return last.has_value() ? std::optional<std::uint64_t>{last->weights.version.step}
                            : std::nullopt;
  }
  Status save(const actors::RunCommit& commit) override {
    ++saves_;
    if (full_from_ != 0 && saves_ >= full_from_) {
      ++num_refused_;
      return {Errc::kResourceExhausted, "simulated: no space left"};
    }
    if (refused_.contains(saves_)) {
      ++num_refused_;
      return {Errc::kUnavailable, "simulated: cannot write"};
    }
    TIDEMILL_ASSIGN_OR_RETURN(actors::RunCommit stored,
                              actors::from_checkpoint(actors::to_checkpoint(commit, {})));
    check_(stored);
    disk_->last = std::move(stored);
    return {};
  }
  Result<std::optional<actors::RunCommit>> load() override { return disk_->last; }
  [[nodiscard]] std::uint64_t num_refused() const { return num_refused_; }

private:
  std::shared_ptr<SimulatedDisk> disk_;
  Check check_;
  std::set<std::uint64_t> refused_;
  std::uint64_t full_from_;
  std::uint64_t saves_ = 0;
  std::uint64_t num_refused_ = 0;
};

/// The appends that fail, counted from 1 over all incarnations of a run.
struct AppendFaults {
  std::set<std::uint64_t> refused;
  std::uint64_t appends = 0;
  std::uint64_t num_refused = 0;
};
class SimulatedRecords final : public actors::RecordFiles {
public:
  SimulatedRecords(std::shared_ptr<SimulatedDisk> disk, std::shared_ptr<AppendFaults> faults,
                   const actors::RecordMarks& marks)
      : disk_(std::move(disk)), faults_(std::move(faults)) {
    disk_->text.metrics.resize(marks.metrics_bytes);
    disk_->text.samples.resize(marks.samples_bytes);
  }
  Result<actors::RecordMarks> append(const std::string& metrics,
                                     const std::string& samples) override {
    disk_->text.samples += samples;
    if (faults_->refused.contains(++faults_->appends)) {
      ++faults_->num_refused;
      return Status(Errc::kUnavailable, "simulated: cannot append");
    }
    disk_->text.metrics += metrics;
    return actors::RecordMarks{disk_->text.metrics.size(), disk_->text.samples.size()};
  }

private:
  std::shared_ptr<SimulatedDisk> disk_;
  std::shared_ptr<AppendFaults> faults_;
};

/// A loss that computes nothing. The replayed training engine only hashes its sequences.
class SimulatedLoss final : public engines::TokenLoss {
public:
  Status evaluate(std::span<const engines::LossSequence> /*rows*/,
                  engines::LossSums& /*sums*/) override {
    return {};
  }
};

/// Returns the options of the replayed engines for `options`.
inline engines::ReplayOptions replay_options(const SimulationOptions& options) {
  engines::ReplayOptions replay;
  replay.seed = options.data_seed;
  replay.slots = 8;
  return replay;
}

/// Returns the reward engine for `options`: a single reward, or a sum of parts. Only the first part
/// may fail.
inline std::unique_ptr<engines::RewardEngine> simulated_rewards(const SimulationOptions& options) {
  auto first = engines::make_replay_reward_engine(options.data_seed, options.fail_one_in);
  if (options.reward_weights.empty()) {
    return first;
  }
  std::vector<engines::RewardPart> parts;
  parts.push_back({kRewardParts[0], options.reward_weights[0], std::move(first)});
  for (std::size_t i = 1; i < options.reward_weights.size(); ++i) {
    parts.push_back({kRewardParts[i], options.reward_weights[i],
                     engines::make_replay_reward_engine(options.data_seed + 100 * i, 0)});
  }
  return engines::make_reward_sum(std::move(parts));
}

/// The samples that have been scored in vain, over all incarnations of a run.
struct RewardFaults {
  std::set<std::uint64_t> refused_once;
  std::uint64_t num_refused = 0;  // by this fault or by the engine
};

/// Refuses some samples the first time that they are scored, and counts all that are refused.
class FlakyRewards final : public engines::RewardEngine, public engines::RewardSink {
public:
  FlakyRewards(const SimulationOptions& options, std::shared_ptr<RewardFaults> faults)
      : options_(options), faults_(std::move(faults)), inner_(simulated_rewards(options)) {}

  Status submit(engines::RewardRequest request, engines::RewardSink& sink) override {
    sinks_[request.id] = &sink;
    return inner_->submit(std::move(request), *this);
  }
  bool has_work() const override { return inner_->has_work(); }
  Status step(Duration patience) override { return inner_->step(patience); }
  void on_reward(engines::RewardResult result) override {
    const std::uint64_t one_in = options_.fail_first_one_in;
    if (one_in != 0 && keyed_bits(options_.data_seed, result.id.value, 3) % one_in == 0 &&
        faults_->refused_once.insert(result.id.value).second) {
      result.error = "cannot be scored yet";
    }
    faults_->num_refused += result.error.empty() ? 0 : 1;
    sinks_.at(result.id)->on_reward(std::move(result));
  }

private:
  SimulationOptions options_;
  std::shared_ptr<RewardFaults> faults_;
  std::unique_ptr<engines::RewardEngine> inner_;
  std::map<SampleId, engines::RewardSink*> sinks_;
};

/// Returns the text of response token ids that the reward engines get.
inline std::string simulated_text(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    text += std::to_string(id) + " ";
  }
  return text;
}

/// Returns as advantages the rewards minus the mean of their group. With `filter`, groups of equal
/// rewards are filtered; with `never_signal`, all groups are.
inline Result<actors::GroupDecision> simulated_decision(std::span<const actors::GroupMember> group,
                                                        const SimulationOptions& options) {
  double mean = 0.0;
  bool equal = true;
  for (const actors::GroupMember& member : group) {
    mean += member.reward / static_cast<double>(group.size());
    equal = equal && member.reward == group.front().reward;
  }
  actors::GroupDecision decision;
  if (options.never_signal || (options.filter && equal)) {
    decision.filtered = "all rewards are equal";
  }
  for (const actors::GroupMember& member : group) {
    decision.advantages.push_back(static_cast<float>(member.reward - mean));
  }
  return decision;
}

}  // namespace tidemill::test
