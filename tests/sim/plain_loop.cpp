// SPDX-License-Identifier: Apache-2.0
// The loop that a run must agree with: generate a batch, score it, train on it, repeat.
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "tests/sim/simulated_parts.hpp"

namespace tidemill::test {
namespace {

using engines::RewardResult;
using engines::RolloutResult;
using engines::Snapshot;
using engines::TrainSequence;

struct Results : engines::RolloutSink, engines::RewardSink {
  void on_rollout(RolloutResult result) override { rollouts.emplace(result.id, std::move(result)); }
  void on_reward(RewardResult result) override { rewards.emplace(result.id, std::move(result)); }
  std::map<SampleId, RolloutResult> rollouts;
  std::map<SampleId, RewardResult> rewards;
};

// Generates all submitted responses, and scores them.
void finish(engines::RolloutEngine& engine, engines::RewardEngine& rewards, Results& results) {
  while (engine.has_work()) {
    TIDEMILL_CHECK(engine.step({}).ok());
  }
  for (const auto& [id, rollout] : results.rollouts) {
    TIDEMILL_CHECK(
        rewards.submit({id, "", simulated_text(rollout.response_ids), "", ""}, results).ok());
  }
  TIDEMILL_CHECK(rewards.step({}).ok());
}

class PlainLoop {
public:
  explicit PlainLoop(const SimulationOptions& options)
      : options_(options), prompts_(options), rewards_(simulated_rewards(options)) {}

  PlainLoopEnd run() {
    const auto replay = replay_options(options_);
    Snapshot weights = engines::replay_initial_snapshot(options_.data_seed);
    const auto trainer = engines::make_replay_training_job(replay, weights);
    std::deque<Snapshot> versions{weights};
    SimulatedLoss loss;
    Best best;
    std::uint64_t step = 0;
    for (; step < options_.steps && !best.is_plateau(options_.best); ++step) {
      const std::uint64_t behind = std::min(step, options_.max_staleness);
      const auto next = make_batch(versions[step - behind], step);
      if (!next.has_value()) {
        break;
      }
      const std::vector<TrainSequence>& batch = *next;
      if (!batch.empty()) {
        TIDEMILL_CHECK(trainer->forward_backward({batch, 1.0F}, loss).ok());
        TIDEMILL_CHECK(engines::run_to_end(*trainer).ok());
        TIDEMILL_CHECK(trainer->optim_step().ok());
        TIDEMILL_CHECK(engines::run_to_end(*trainer).ok());
      }
      TIDEMILL_CHECK(trainer->save({0, 0, step + 1}).ok());
      TIDEMILL_CHECK(engines::run_to_end(*trainer).ok());
      weights = trainer->take_snapshot();
      versions.push_back(weights);
      if (options_.best.enabled() && options_.evaluates(step + 1)) {
        best.update(options_, weights.base_digest);
      }
    }
    const bool other = options_.best.keep && best.value.has_value();
    return {step, best.is_plateau(options_.best), other ? best.digest : weights.base_digest};
  }

private:
  // The best evaluation.
  struct Best {
    std::optional<double> value;
    std::string digest;
    std::uint32_t worse = 0;

    void update(const SimulationOptions& options, const std::string& weights) {
      const auto found = simulated_evaluation(options, weights);
      if (!found.has_value()) {
        return;
      }
      ++worse;
      if (!value.has_value() || *found > *value + options.best.min_improvement) {
        *this = {found, weights, 0};
      }
    }
    [[nodiscard]] bool is_plateau(const actors::BestOptions& options) const {
      return options.patience != 0 && worse >= options.patience;
    }
  };

  // Makes the next batch. A fixed batch holds those of its own groups that have not left; any other
  // batch is filled up with the next groups. Returns nothing if the data ends before the batch is
  // full.
  std::optional<std::vector<TrainSequence>> make_batch(const Snapshot& weights,
                                                       std::uint64_t step) {
    std::vector<TrainSequence> batch;
    std::uint32_t kept = 0;
    const bool fixed = options_.generation_order == actors::GenerationOrder::kFixed;
    while (fixed ? next_group_ < (step + 1) * options_.groups_per_step
                 : kept < options_.groups_per_step) {
      const auto prompt = prompts_.read(next_draw_, 1).value();
      if (prompt.empty()) {
        return std::nullopt;
      }
      next_draw_ = prompt.front().draw + 1;
      const auto group = make_group(weights, next_group_++, prompt.front());
      kept += group.empty() ? 0 : 1;
      batch.insert(batch.end(), group.begin(), group.end());
    }
    return batch;
  }

  std::vector<TrainSequence> make_group(const Snapshot& weights, std::uint64_t group,
                                        const actors::Prompt& prompt) {
    const auto engine = engines::make_replay_rollout_engine(replay_options(options_), weights);
    Results results;
    for (std::uint32_t i = 0; i < options_.group_size; ++i) {
      engines::RolloutRequest request;
      request.id = {group * options_.group_size + i};
      request.prompt_ids = prompt.ids;
      request.seed = options_.data_seed;
      request.max_new_tokens = kMaxNewTokens;
      TIDEMILL_CHECK(engine->submit(std::move(request), results).ok());
    }
    finish(*engine, *rewards_, results);
    return decide(prompt, results);
  }

  std::vector<TrainSequence> decide(const actors::Prompt& prompt, const Results& results) const {
    std::vector<actors::GroupMember> members;
    for (const auto& [id, reward] : results.rewards) {
      if (!reward.error.empty()) {
        if (options_.on_failed == storage::OnFailedRow::kDropGroup) {
          return {};
        }
        continue;
      }
      members.push_back({id, reward.reward, 0, false});
    }
    if (members.empty()) {
      return {};
    }
    const auto decision = simulated_decision(members, options_).value();
    if (!decision.filtered.empty()) {
      return {};
    }
    std::vector<TrainSequence> sequences;
    for (std::size_t i = 0; i < members.size(); ++i) {
      sequences.push_back(
          sequence_of(prompt, results.rollouts.at(members[i].id), decision.advantages[i]));
    }
    return sequences;
  }

  static TrainSequence sequence_of(const actors::Prompt& prompt, const RolloutResult& rollout,
                                   float advantage) {
    TrainSequence sequence;
    sequence.id = rollout.id;
    sequence.ids = prompt.ids;
    sequence.response_mask.assign(prompt.ids.size(), 0);
    sequence.advantages.assign(prompt.ids.size(), 0.0F);
    sequence.behavior_logprobs.assign(prompt.ids.size(), 0.0F);
    for (std::size_t t = 0; t < rollout.response_ids.size(); ++t) {
      sequence.ids.push_back(rollout.response_ids[t]);
      sequence.response_mask.push_back(1);
      sequence.advantages.push_back(advantage);
      sequence.behavior_logprobs.push_back(rollout.behavior_logprobs[t]);
    }
    return sequence;
  }

  SimulationOptions options_;
  SimulatedPrompts prompts_;
  std::unique_ptr<engines::RewardEngine> rewards_;
  std::uint64_t next_group_ = 0;
  std::uint64_t next_draw_ = 0;
};

// Outside the range of the stream's sample ids, like the ids of the evaluator.
constexpr std::uint64_t kFirstEvalId = std::uint64_t{1} << 62U;

}  // namespace

std::optional<double> simulated_evaluation(const SimulationOptions& options,
                                           const std::string& base_digest) {
  engines::Snapshot weights;
  weights.base_digest = base_digest;
  const auto engine = engines::make_replay_rollout_engine(replay_options(options), weights);
  const auto rewards = simulated_rewards(options);
  const auto prompts = SimulatedPrompts(options.prompts).read(0, kEvalPrompts).value();
  Results results;
  for (std::uint64_t i = 0; i < kEvalPrompts * kEvalSamples; ++i) {
    engines::RolloutRequest request;
    request.id = {kFirstEvalId + i};
    request.prompt_ids = prompts[i / kEvalSamples].ids;
    request.seed = options.data_seed;
    request.max_new_tokens = kMaxNewTokens;
    TIDEMILL_CHECK(engine->submit(std::move(request), results).ok());
  }
  finish(*engine, *rewards, results);
  double sum = 0.0;  // a response without a reward counts as 0
  bool any = false;
  for (const auto& [id, reward] : results.rewards) {
    sum += reward.reward;
    any = any || reward.error.empty();
  }
  return any ? std::optional(sum / static_cast<double>(results.rewards.size())) : std::nullopt;
}

PlainLoopEnd run_plain_loop(const SimulationOptions& options) {
  return PlainLoop(options).run();
}

}  // namespace tidemill::test
