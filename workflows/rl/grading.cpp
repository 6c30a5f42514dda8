// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/grading.hpp"

#include <cmath>
#include <utility>

#include "actors/data/dataset_prompts.hpp"
#include "actors/evaluator/scores.hpp"
#include "engines/runtime/factory.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rl/rl_settings.hpp"

namespace tidemill::workflows {
namespace {

constexpr Duration kPatience = std::chrono::milliseconds(100);

// Answers as they come back from the engines, by their place.
struct Desk final : engines::RolloutSink, engines::RewardSink {
  void on_rollout(engines::RolloutResult result) override {
    responses[result.id.value] = std::move(result);
  }
  void on_reward(engines::RewardResult result) override {
    rewards[result.id.value] = std::move(result);
  }
  std::vector<std::optional<engines::RolloutResult>> responses;
  std::vector<std::optional<engines::RewardResult>> rewards;
};

// A model ready to answer, and what it is asked.
struct Examination {
  std::optional<actors::TextCodec> codec;
  std::vector<actors::Prompt> prompts;
  std::vector<std::int32_t> stop_ids;
  std::unique_ptr<engines::ModelRuntime> runtime;
};

Result<Examination> prepare(const RlOptions& options, const GradedModel& graded) {
  Examination exam;
  TIDEMILL_ASSIGN_OR_RETURN(
      exam.codec, actors::TextCodec::load(graded.model, graded.now, chat_form(options.data)));
  TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelFiles files, engines::open_model(graded.model));
  // The run that trained the model has said what is passed over.
  TIDEMILL_ASSIGN_OR_RETURN(
      exam.prompts, read_eval_prompts(options, *exam.codec, files.config, [](const auto&) {}));
  exam.stop_ids = stop_ids(options, files);
  engines::RuntimeOptions runtime;
  runtime.threads = options.run.device.threads;
  runtime.kv_bytes = options.rollout.kv_bytes;
  runtime.token_text = [codec = *exam.codec](std::int32_t id) {
    return std::string(codec.tokenizer().token_bytes(id));
  };
  if (graded.adapter.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(runtime.adapter,
                              engines::open_adapter(*graded.adapter, files.config));
  }
  TIDEMILL_ASSIGN_OR_RETURN(exam.runtime, engines::open_runtime(files, runtime));
  return exam;
}

Status generate(const RlOptions& options, const Examination& exam, Desk& desk) {
  engines::RolloutEngine& engine = exam.runtime->rollout();
  for (std::size_t i = 0; i < desk.responses.size(); ++i) {
    engines::RolloutRequest request;
    request.id = SampleId{i};
    request.prompt_ids = exam.prompts[i / static_cast<std::size_t>(options.eval.samples)].ids;
    request.sampling.temperature = static_cast<float>(options.eval.temperature);
    request.seed = options.run.seed;
    request.max_new_tokens = options.rollout.max_new_tokens;
    request.stop_ids = exam.stop_ids;
    request.stop_strings = options.rollout.stop;
    TIDEMILL_RETURN_IF_ERROR(engine.submit(std::move(request), desk));
  }
  while (engine.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(engine.step(engines::StepBudget{}).status());
  }
  return {};
}

Status score(const Examination& exam, std::size_t samples, engines::RewardEngine& engine,
             Desk& desk) {
  for (std::size_t i = 0; i < desk.responses.size(); ++i) {
    const auto& response = desk.responses[i];
    if (!response.has_value() || response->finish_reason == engines::FinishReason::kFailed) {
      continue;
    }
    const actors::Prompt& prompt = exam.prompts[i / samples];
    engines::RewardRequest request{SampleId{i}, prompt.prompt,
                                   exam.codec->decode(response->response_ids), prompt.answer,
                                   prompt.fields};
    TIDEMILL_RETURN_IF_ERROR(engine.submit(std::move(request), desk));
  }
  while (engine.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(engine.step(kPatience));
  }
  return {};
}

Grades grades_of(const Examination& exam, std::size_t samples, const Desk& desk) {
  Grades grades;
  grades.samples = samples;
  std::vector<double> rewards;
  for (std::size_t i = 0; i < desk.responses.size(); ++i) {
    const actors::Prompt& prompt = exam.prompts[i / samples];
    GradedAnswer graded{prompt.prompt, {}, prompt.answer, 0.0};
    if (desk.responses[i].has_value()) {
      graded.response = exam.codec->decode(desk.responses[i]->response_ids);
    }
    const auto& reward = desk.rewards[i];
    if (reward.has_value() && reward->error.empty() && std::isfinite(reward->reward)) {
      graded.reward = reward->reward;
    } else {
      ++grades.failed;
    }
    rewards.push_back(graded.reward);
    grades.answers.push_back(std::move(graded));
  }
  const actors::EvalScores scores = actors::eval_scores(rewards, samples);
  grades.mean_at_k = scores.mean_at_k;
  grades.pass_at_k = scores.pass_at_k;
  return grades;
}

}  // namespace

Result<Grades> grade_model(const RlOptions& options, const GradedModel& graded,
                           const RewardContext& context) {
  TIDEMILL_ASSIGN_OR_RETURN(const Examination exam, prepare(options, graded));
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<engines::RewardEngine> reward,
                            make_rewards(options.reward, context));
  const auto samples = static_cast<std::size_t>(options.eval.samples);
  Desk desk;
  desk.responses.resize(exam.prompts.size() * samples);
  desk.rewards.resize(desk.responses.size());
  TIDEMILL_RETURN_IF_ERROR(generate(options, exam, desk));
  TIDEMILL_RETURN_IF_ERROR(score(exam, samples, *reward, desk));
  return grades_of(exam, samples, desk);
}

}  // namespace tidemill::workflows
