// SPDX-License-Identifier: Apache-2.0
// What a simulated run plugs in where a real one has files: prompts, commits, records. Shared by
// the simulation and the plain loop it is compared with.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/advantage/spawn.hpp"
#include "actors/commit/run_commit.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "base/random.hpp"
#include "engines/replay/factory.hpp"
#include "engines/train_engine.hpp"
#include "tests/sim/simulated_run.hpp"

namespace tidemill::test {

inline constexpr std::int32_t kMaxNewTokens = 6;

/// Prompts made from their draw.
class SimulatedPrompts final : public actors::PromptReader {
public:
  explicit SimulatedPrompts(std::uint64_t prompts) : prompts_(prompts) {}
  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<actors::Prompt> prompts;
    for (std::uint64_t d = draw; d < draw + count; ++d) {
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
};

/// Commits in memory. The first `failures` saves are refused.
class SimulatedCommits final : public actors::CommitStore {
public:
  explicit SimulatedCommits(std::uint32_t failures) : failures_(failures) {}
  Status save(const actors::RunCommit& commit) override {
    if (failures_ > 0) {
      --failures_;
      return {Errc::kUnavailable, "simulated: cannot write"};
    }
    last_ = commit;
    return {};
  }
  Result<std::optional<actors::RunCommit>> load() override { return last_; }

private:
  std::uint32_t failures_;
  std::optional<actors::RunCommit> last_;
};

/// Record files in memory; cut back when opened again.
struct SimulatedRecordText {
  std::string metrics;
  std::string samples;
};
class SimulatedRecords final : public actors::RecordFiles {
public:
  SimulatedRecords(std::shared_ptr<SimulatedRecordText> text, const actors::RecordMarks& marks)
      : text_(std::move(text)) {
    text_->metrics.resize(marks.metrics_bytes);
    text_->samples.resize(marks.samples_bytes);
  }
  Result<actors::RecordMarks> append(const std::string& metrics,
                                     const std::string& samples) override {
    text_->metrics += metrics;
    text_->samples += samples;
    return actors::RecordMarks{text_->metrics.size(), text_->samples.size()};
  }

private:
  std::shared_ptr<SimulatedRecordText> text_;
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

/// Response text of token ids, as rewards see it.
inline std::string simulated_text(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    text += std::to_string(id) + " ";
  }
  return text;
}

/// Rewards less their group's mean; with `filter`, groups of equal rewards leave.
inline Result<actors::GroupDecision> simulated_decision(std::span<const actors::GroupMember> group,
                                                        bool filter) {
  double mean = 0.0;
  bool equal = true;
  for (const actors::GroupMember& member : group) {
    mean += member.reward / static_cast<double>(group.size());
    equal = equal && member.reward == group.front().reward;
  }
  actors::GroupDecision decision;
  if (filter && equal) {
    decision.filtered = "all rewards are equal";
  }
  for (const actors::GroupMember& member : group) {
    decision.advantages.push_back(static_cast<float>(member.reward - mean));
  }
  return decision;
}

}  // namespace tidemill::test
