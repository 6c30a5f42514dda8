// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/evaluation.hpp"

#include <cmath>
#include <utility>

#include "actors/data/dataset_prompts.hpp"
#include "actors/evaluator/scores.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rl/rl_load.hpp"
#include "workflows/rl/rl_settings.hpp"

namespace tidemill::workflows {
namespace {

constexpr Duration kPatience = std::chrono::milliseconds(100);

// Collects the results of the engines. The index of a response is its sample id.
struct EvaluationResults final : engines::RolloutSink, engines::RewardSink {
  void on_rollout(engines::RolloutResult result) override {
    responses[result.id.value] = std::move(result);
  }
  void on_reward(engines::RewardResult result) override {
    rewards[result.id.value] = std::move(result);
  }
  std::vector<std::optional<engines::RolloutResult>> responses;
  std::vector<std::optional<engines::RewardResult>> rewards;
};

// An opened model and the prompts to evaluate it on.
struct EvaluationSetup {
  std::optional<actors::TextCodec> codec;
  std::vector<actors::Prompt> prompts;
  std::vector<std::int32_t> stop_ids;
  std::unique_ptr<engines::ModelRuntime> runtime;
};

Result<EvaluationSetup> prepare(const RlOptions& options, const EvaluatedModel& evaluated) {
  EvaluationSetup setup;
  TIDEMILL_ASSIGN_OR_RETURN(setup.codec, actors::TextCodec::load(evaluated.model, evaluated.now,
                                                                 chat_options(options.data)));
  TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelFiles files, engines::open_model(evaluated.model));
  // The run that trained the model has already reported prompts that are too long.
  TIDEMILL_ASSIGN_OR_RETURN(
      actors::AllPrompts all,
      read_eval_prompts(options, *setup.codec, files.config, [](const auto&) {}));
  setup.prompts = std::move(all.prompts);
  setup.stop_ids = stop_ids(options, files);
  engines::RuntimeOptions runtime;
  runtime.threads = options.run.device.threads;
  runtime.compute = compute_type(options.model, files.config);
  runtime.kv_dtype = engines::cache_type(runtime.compute);
  const std::int64_t running =
      std::min<std::int64_t>(runtime.max_running, std::ssize(setup.prompts) * options.eval.samples);
  runtime.kv_bytes = options.rollout.kv_bytes.value_or(
      running * engines::kv_bytes_for(files.config, runtime,
                                      longest_sequence(options, all.lengths.longest())));
  runtime.token_text = [codec = *setup.codec](std::int32_t id) {
    return std::string(codec.tokenizer().token_bytes(id));
  };
  if (evaluated.adapter.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(runtime.adapter,
                              engines::open_adapter(*evaluated.adapter, files.config));
  }
  TIDEMILL_ASSIGN_OR_RETURN(setup.runtime, engines::open_runtime(files, runtime));
  return setup;
}

Status generate(const RlOptions& options, const EvaluationSetup& setup,
                EvaluationResults& results) {
  engines::RolloutEngine& engine = setup.runtime->rollout();
  for (std::size_t i = 0; i < results.responses.size(); ++i) {
    engines::RolloutRequest request;
    request.id = SampleId{i};
    request.prompt_ids = setup.prompts[i / static_cast<std::size_t>(options.eval.samples)].ids;
    request.sampling.temperature = static_cast<float>(options.eval.temperature);
    request.seed = options.run.seed;
    request.max_new_tokens = options.rollout.max_new_tokens;
    request.stop_ids = setup.stop_ids;
    request.stop_strings = options.rollout.stop;
    TIDEMILL_RETURN_IF_ERROR(engine.submit(std::move(request), results));
  }
  while (engine.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(engine.step(engines::StepBudget{}).status());
  }
  return {};
}

Status score(const EvaluationSetup& setup, std::size_t samples, engines::RewardEngine& engine,
             EvaluationResults& results) {
  for (std::size_t i = 0; i < results.responses.size(); ++i) {
    const auto& response = results.responses[i];
    if (!response.has_value() || response->finish_reason == engines::FinishReason::kFailed) {
      continue;
    }
    const actors::Prompt& prompt = setup.prompts[i / samples];
    engines::RewardRequest request{SampleId{i}, prompt.prompt,
                                   setup.codec->decode(response->response_ids),
                                   prompt.reference_answer, prompt.fields};
    TIDEMILL_RETURN_IF_ERROR(engine.submit(std::move(request), results));
  }
  while (engine.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(engine.step(kPatience));
  }
  return {};
}

ModelScores scores_of(const EvaluationSetup& setup, std::size_t samples,
                      const EvaluationResults& results) {
  ModelScores scores;
  scores.samples = samples;
  std::vector<double> rewards;
  for (std::size_t i = 0; i < results.responses.size(); ++i) {
    const actors::Prompt& prompt = setup.prompts[i / samples];
    ScoredResponse scored{prompt.prompt, {}, prompt.reference_answer, 0.0};
    if (results.responses[i].has_value()) {
      scored.response = setup.codec->decode(results.responses[i]->response_ids);
    }
    const auto& reward = results.rewards[i];
    if (reward.has_value() && reward->error.empty() && engines::is_reward(reward->reward)) {
      scored.reward = reward->reward;
    } else {
      ++scores.failed;
    }
    rewards.push_back(scored.reward);
    scores.responses.push_back(std::move(scored));
  }
  const actors::EvalScores totals = actors::eval_scores(rewards, samples);
  scores.mean_at_k = totals.mean_at_k;
  scores.pass_at_k = totals.pass_at_k;
  return scores;
}

}  // namespace

Result<ModelScores> evaluate_model(const RlOptions& options, const EvaluatedModel& evaluated,
                                   const RewardContext& context) {
  TIDEMILL_ASSIGN_OR_RETURN(const EvaluationSetup setup, prepare(options, evaluated));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<engines::RewardEngine> reward,
                            make_rewards(options.reward, context));
  const auto samples = static_cast<std::size_t>(options.eval.samples);
  EvaluationResults results;
  results.responses.resize(setup.prompts.size() * samples);
  results.rewards.resize(results.responses.size());
  TIDEMILL_RETURN_IF_ERROR(generate(options, setup, results));
  TIDEMILL_RETURN_IF_ERROR(score(setup, samples, *reward, results));
  return scores_of(setup, samples, results);
}

}  // namespace tidemill::workflows
