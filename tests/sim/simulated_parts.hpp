// SPDX-License-Identifier: Apache-2.0
// What a simulated run plugs in where a real one has files: prompts, commits, records. Shared by
// the simulation and the plain loop it is compared with.
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
#include "engines/train_engine.hpp"
#include "tests/sim/simulated_run.hpp"

namespace tidemill::test {

inline constexpr std::int32_t kMaxNewTokens = 6;
inline constexpr std::uint64_t kPromptTokens = 3;
inline constexpr std::uint64_t kEvalPrompts = 2;
inline constexpr std::uint32_t kEvalSamples = 2;  // of each prompt
inline constexpr const char* kRewardParts[] = {"first", "second", "third"};

/// Prompts made from their draw, until `end` of them (0: without end) have been drawn.
class SimulatedPrompts final : public actors::PromptReader {
public:
  SimulatedPrompts(std::uint64_t prompts, std::uint64_t end) : prompts_(prompts), end_(end) {}
  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<actors::Prompt> prompts;
    for (std::uint64_t d = draw; d < draw + count && (end_ == 0 || d < end_); ++d) {
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
  std::uint64_t end_;
};

/// Record files in memory; cut back when opened again.
struct SimulatedRecordText {
  std::string metrics;
  std::string samples;
};

/// Digests of weights by the version's incarnation and step.
using PublishedDigests = std::map<std::pair<std::uint32_t, std::uint64_t>, std::string>;

struct SimulatedDisk {
  std::optional<actors::RunCommit> last;
  // Beside the commit, for the checks alone.
  PublishedDigests published;
  std::map<std::uint64_t, std::string> committed;  // digests of the committed history, by step
  SimulatedRecordText text;
};

/// Commits in memory, on their way through the parts of a checkpoint. `check` sees each that is
/// saved, before it is the last one. Saves are refused whose numbers, from 1, are in `refused`; and
/// all from `full_from` on, for want of space.
class SimulatedCommits final : public actors::CommitStore {
public:
  using Check = std::function<void(const actors::RunCommit&)>;

  SimulatedCommits(std::shared_ptr<SimulatedDisk> disk, Check check,
                   std::set<std::uint64_t> refused, std::uint64_t full_from)
      : disk_(std::move(disk)),
        check_(std::move(check)),
        refused_(std::move(refused)),
        full_from_(full_from) {}
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

/// Which appends fail, counted over all incarnations of a run.
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

/// A loss that computes nothing: the replayed trainer hashes its sequences.
class SimulatedLoss final : public engines::TokenLoss {
public:
  Status evaluate(std::span<const engines::LossRow> /*rows*/,
                  engines::LossSums& /*sums*/) override {
    return {};
  }
};

/// Replayed engines' options for `options`.
inline engines::ReplayOptions replay_options(const SimulationOptions& options) {
  engines::ReplayOptions replay;
  replay.seed = options.data_seed;
  replay.slots = 8;
  return replay;
}

/// The reward of `options`, alone or as a sum of parts. Only the first part may fail.
inline std::unique_ptr<engines::RewardEngine> simulated_rewards(const SimulationOptions& options) {
  auto first = engines::make_replay_reward_engine(options.data_seed, options.one_in_fails);
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

/// Response text of token ids, as rewards see it.
inline std::string simulated_text(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    text += std::to_string(id) + " ";
  }
  return text;
}

/// Rewards less their group's mean; with `filter`, groups of equal rewards leave, and all of them
/// with `never_signal`.
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
