// SPDX-License-Identifier: Apache-2.0
// Every key of a run reaches the option that it sets. All values differ, so that two that are
// exchanged show.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json/json.hpp"
#include "engines/rl/algorithm.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rl/rl_settings.hpp"
#include "workflows/sft/sft_settings.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::ElementsAre;

TEST(SettingsMapping, OfTheTrainer) {
  RlOptions options;
  options.train.prompts_per_step = 3;
  options.train.minibatches = 4;
  options.train.epochs = 5;
  options.staleness.max = 6;
  options.run.checkpoint.every_steps = 7;
  options.eval.common.every_steps = 8;
  options.eval.common.keep_best = true;
  options.eval.common.patience = 9;
  options.eval.common.min_improvement = 0.25;
  options.rollout.temperature = 0.75;
  options.rollout.max_new_tokens = 5;
  const actors::TrainerOptions trainer = trainer_options(options, 11);
  EXPECT_EQ(trainer.max_new_tokens, 5);
  EXPECT_EQ(trainer.groups_per_step, 3U);
  EXPECT_EQ(trainer.minibatches, 4U);
  EXPECT_EQ(trainer.epochs, 5U);
  EXPECT_EQ(trainer.max_staleness, 6U);
  EXPECT_EQ(trainer.commit_every, 7U);
  EXPECT_EQ(trainer.eval_every, 8U);
  EXPECT_TRUE(trainer.best.keep);
  EXPECT_EQ(trainer.best.patience, 9U);
  EXPECT_EQ(trainer.best.min_improvement, 0.25);
  EXPECT_EQ(trainer.best.better, actors::Better::kHigher);
  EXPECT_EQ(trainer.total_steps, 11U);
  EXPECT_EQ(trainer.temperature, 0.75F);
  EXPECT_FALSE(trainer.fixed_batches);
  EXPECT_FALSE(trainer.recompute_proximal);
  EXPECT_FALSE(trainer.mask_truncated);

  options.rollout.temperature = 0.0;
  options.staleness.schedule = StalenessSchedule::kFixed;
  options.algorithm.proximal = ProximalPolicy::kRecompute;
  const actors::TrainerOptions other = trainer_options(options, 11);
  EXPECT_EQ(other.temperature, 1.0F) << "greedy";
  EXPECT_TRUE(other.fixed_batches);
  EXPECT_TRUE(other.recompute_proximal);
  EXPECT_FALSE(other.mask_truncated);
  options.algorithm.mask_truncated = true;
  EXPECT_TRUE(trainer_options(options, 11).mask_truncated);
}

TEST(SettingsMapping, OfTheSupervisedTrainer) {
  SftOptions options;
  options.train.sequences_per_step = 3;
  options.run.checkpoint.every_steps = 4;
  options.eval.every_steps = 5;
  options.eval.keep_best = true;
  options.eval.patience = 6;
  options.eval.min_improvement = 0.25;
  const actors::SupervisedDeps trainer = supervised_deps(options, 7);
  EXPECT_EQ(trainer.sequences_per_step, 3U);
  EXPECT_EQ(trainer.commit_every, 4U);
  EXPECT_EQ(trainer.eval_every, 5U);
  EXPECT_TRUE(trainer.best_options.keep);
  EXPECT_EQ(trainer.best_options.patience, 6U);
  EXPECT_EQ(trainer.best_options.min_improvement, 0.25);
  EXPECT_EQ(trainer.best_options.better, actors::Better::kLower) << "a loss";
  EXPECT_EQ(trainer.total_steps, 7U);
}

TEST(SettingsMapping, OfTheEvaluator) {
  RlOptions options;
  options.eval.samples = 3;
  options.eval.temperature = 0.5;
  options.run.seed = 4;
  options.rollout.temperature = 0.75;
  options.rollout.max_new_tokens = 5;
  options.rollout.stop_ids = {6};
  options.rollout.stop = {"end"};
  engines::ModelFiles files;
  files.config.eos_token_ids = {7};
  const actors::EvaluatorDeps evaluator = evaluator_deps(options, files);
  EXPECT_EQ(evaluator.samples, 3U);
  EXPECT_EQ(evaluator.sampling.temperature, 0.5F);
  EXPECT_EQ(evaluator.seed, 4U);
  EXPECT_EQ(evaluator.max_new_tokens, 5);
  EXPECT_THAT(evaluator.stop_ids, ElementsAre(7, 6));
  EXPECT_THAT(evaluator.stop_strings, ElementsAre("end"));
}

TEST(SettingsMapping, OfTheData) {
  DataOptions data;
  data.train = {{"a", 3.0}, {"b", 4.0}};
  data.seed = 5;
  const storage::DatasetOptions own = dataset_options(data, 6);
  EXPECT_THAT(own.paths, ElementsAre("a", "b"));
  EXPECT_THAT(own.weights, ElementsAre(3.0, 4.0));
  EXPECT_EQ(own.seed, 5U);
  EXPECT_EQ(own.order, storage::RowOrder::kShuffled);
  EXPECT_EQ(own.on_error, storage::OnRowError::kError);

  data.train = {{"a", {}}};
  data.seed = 0;  // a seed of its own too
  EXPECT_EQ(dataset_options(data, 6).seed, 0U);
  EXPECT_TRUE(dataset_options(data, 6).weights.empty());
  data.seed.reset();
  data.shuffle = false;
  data.on_error = OnBadRow::kSkip;
  const storage::DatasetOptions other = dataset_options(data, 6);
  EXPECT_EQ(other.seed, 6U);
  EXPECT_EQ(other.order, storage::RowOrder::kFileOrder);
  EXPECT_EQ(other.on_error, storage::OnRowError::kSkip);

  EXPECT_EQ(on_long_prompt(data), actors::OnLongPrompt::kError);
  data.on_long_prompt = OnLongPrompt::kSkip;
  EXPECT_EQ(on_long_prompt(data), actors::OnLongPrompt::kSkip);
  data.on_long_prompt = OnLongPrompt::kTruncateLeft;
  EXPECT_EQ(on_long_prompt(data), actors::OnLongPrompt::kTruncateLeft);
}

TEST(SettingsMapping, OfTheOptimizer) {
  TrainOptions train;
  train.learning_rate = 0.25;
  train.schedule = LearningRateSchedule::kCosine;
  train.warmup_steps = 3;
  train.betas = {0.5, 0.75};
  train.epsilon = 0.125;
  train.weight_decay = 0.375;
  train.weight_decay_exclude = WeightDecayExclude::kNone;
  train.max_grad_norm = 7.0;
  DeviceOptions device;
  device.threads = 2;
  const engines::RuntimeOptions runtime = runtime_options({}, {}, train, 9, device);
  EXPECT_EQ(runtime.threads, 2);
  ASSERT_TRUE(runtime.optimizer.has_value());
  const engines::OptimizerOptions& optimizer = *runtime.optimizer;
  EXPECT_EQ(optimizer.schedule.learning_rate, 0.25);
  EXPECT_EQ(optimizer.schedule.kind, engines::LearningRateScheduleKind::kCosine);
  EXPECT_EQ(optimizer.schedule.warmup_steps, 3);
  EXPECT_EQ(optimizer.total_steps, 9);
  EXPECT_EQ(optimizer.adamw.beta1, 0.5);
  EXPECT_EQ(optimizer.adamw.beta2, 0.75);
  EXPECT_EQ(optimizer.adamw.epsilon, 0.125);
  EXPECT_EQ(optimizer.weight_decay, 0.375);
  EXPECT_EQ(optimizer.weight_decay_exclude, engines::DecayExclude::kNone);
  EXPECT_EQ(optimizer.max_grad_norm, 7.0);
  train.schedule = LearningRateSchedule::kLinear;
  train.weight_decay_exclude = WeightDecayExclude::kNormsAndBiases;
  const engines::RuntimeOptions other = runtime_options({}, {}, train, 9, device);
  EXPECT_EQ(other.optimizer->schedule.kind, engines::LearningRateScheduleKind::kLinear);
  EXPECT_EQ(other.optimizer->weight_decay_exclude, engines::DecayExclude::kNormsAndBiases);
}

TEST(SettingsMapping, OfConversations) {
  DataOptions data;
  data.chat = true;
  data.system = "be brief";
  EXPECT_EQ(chat_options(data).variables, "");
  ConfigNode off;
  off.kind = ConfigNode::Kind::kPlain;
  off.text = "false";
  data.chat_template_kwargs.entries.push_back({"enable_thinking", {}, off});
  const actors::ChatOptions chat = chat_options(data);
  EXPECT_TRUE(chat.prompts_as_messages);
  EXPECT_EQ(chat.system, "be brief");
  EXPECT_EQ(parse_json(chat.variables).value().to_line(), "{\"enable_thinking\":false}\n");
}

TEST(SettingsMapping, TheTypeOfAModelIsThatOfItsFilesUnlessItIsChosen) {
  engines::ModelConfig config;
  ModelOptions options;
  config.dtype = DType::kBF16;
  EXPECT_EQ(compute_type(options, config), DType::kBF16);
  config.dtype = DType::kF16;
  EXPECT_EQ(compute_type(options, config), DType::kF32);
  config.dtype = DType::kBF16;
  const std::pair<ModelDType, DType> types[] = {{ModelDType::kF32, DType::kF32},
                                                {ModelDType::kBf16, DType::kBF16},
                                                {ModelDType::kInt8, DType::kBlockI8},
                                                {ModelDType::kNf4, DType::kNf4}};
  for (const auto& [chosen, expected] : types) {
    options.dtype = chosen;
    EXPECT_EQ(compute_type(options, config), expected);
  }
}

TEST(SettingsMapping, OfTheStream) {
  RlOptions options;
  options.rollout.group_size = 3;
  options.rollout.max_new_tokens = 100;
  options.staleness.max = 4;
  options.stream.max_deliveries = 5;
  options.stream.lease_ms = 6'500;
  options.stream.bytes = 7'000'000;
  const actors::SampleStreamOptions stream = stream_options(options, 2'000);
  EXPECT_EQ(stream.group_size, 3U);
  EXPECT_EQ(stream.max_staleness, 4U);
  EXPECT_EQ(stream.max_deliveries, 5U);
  EXPECT_EQ(stream.lease, Duration(std::chrono::milliseconds(6'500)));
  EXPECT_EQ(stream.limit_bytes, 7'000'000U);
  EXPECT_EQ(stream.group_bytes, 3U * (2'000 + 8 * 100 + 1024));
  EXPECT_EQ(stream.on_failed, storage::OnFailedRow::kDropGroup);
  options.stream.on_failed = OnFailedSample::kShrink;
  EXPECT_EQ(stream_options(options, 2'000).on_failed, storage::OnFailedRow::kShrink);
  options.train.prompts_per_step = 7;
  EXPECT_EQ(max_concurrent_rows(options), 7 * 3 * (4 + 1));
}

TEST(SettingsMapping, OfSampling) {
  RolloutOptions rollout;
  rollout.temperature = 0.5;
  rollout.top_k = 17;
  rollout.top_p = 0.875;
  rollout.min_p = 0.0625;
  rollout.repetition_penalty = 1.25;
  rollout.frequency_penalty = 0.375;
  rollout.presence_penalty = -0.125;
  const engines::SamplingOptions sampling = sampling_options(rollout);
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_k, 17);
  EXPECT_EQ(sampling.top_p, 0.875F);
  EXPECT_EQ(sampling.min_p, 0.0625F);
  EXPECT_EQ(sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(sampling.frequency_penalty, 0.375F);
  EXPECT_EQ(sampling.presence_penalty, -0.125F);
}

TEST(SettingsMapping, OfTheExecutor) {
  RlOptions options;
  options.train.common.micro_batch_tokens = 333;
  options.executor.train_weight = 2.5;
  const engines::ExecutorOptions executor = executor_options(options);
  EXPECT_EQ(executor.train_tokens, 333);
  EXPECT_EQ(executor.train_weight, 2.5);
  EXPECT_EQ(executor.precedence, engines::Precedence::kShares);
  options.executor.priority = SharingPriority::kRollout;
  EXPECT_EQ(executor_options(options).precedence, engines::Precedence::kRollout);
  options.executor.priority = SharingPriority::kTrain;
  EXPECT_EQ(executor_options(options).precedence, engines::Precedence::kTrain);
}

TEST(SettingsMapping, OfTheLoss) {
  RlOptions options;
  options.algorithm.correction_cap = 3.5;
  const engines::PolicyTokenLossOptions behavior = loss_options(options);
  EXPECT_EQ(behavior.old_logprobs, engines::OldLogprobs::kBehavior);
  EXPECT_FALSE(behavior.policy.rollout_correction.has_value());
  options.algorithm.proximal = ProximalPolicy::kRecompute;
  const std::pair<BehaviorCorrection, engines::CorrectionRule> rules[] = {
      {BehaviorCorrection::kRaw, engines::CorrectionRule::kRaw},
      {BehaviorCorrection::kTruncate, engines::CorrectionRule::kTruncate},
      {BehaviorCorrection::kMask, engines::CorrectionRule::kMask}};
  for (const auto& [chosen, expected] : rules) {
    options.algorithm.correction = chosen;
    const engines::PolicyTokenLossOptions proximal = loss_options(options);
    EXPECT_EQ(proximal.old_logprobs, engines::OldLogprobs::kProximal);
    ASSERT_TRUE(proximal.policy.rollout_correction.has_value());
    EXPECT_EQ(proximal.policy.rollout_correction->rule, expected);
    EXPECT_EQ(proximal.policy.rollout_correction->upper, 3.5);
  }
}

TEST(SettingsMapping, OfTheAlgorithm) {
  AlgorithmOptions options;
  options.name = "mine";
  options.scale_epsilon = 0.25;
  options.clip_low = 0.375;
  options.clip_high = 0.5;
  const engines::Algorithm plain = chosen_algorithm(options, 77);
  EXPECT_EQ(plain.name, "mine");
  EXPECT_EQ(plain.advantage, engines::AdvantageKind::kGrpo);
  EXPECT_EQ(plain.grpo.scale, engines::AdvantageScale::kGroupStd);
  EXPECT_EQ(plain.grpo.eps, 0.25);
  EXPECT_EQ(plain.policy.clip_low, 0.375);
  EXPECT_EQ(plain.policy.clip_high, 0.5);
  EXPECT_FALSE(plain.group_filter.has_value());
  EXPECT_FALSE(plain.overlong.has_value());

  options.baseline = Baseline::kLeaveOneOut;
  options.scale = AdvantageScale::kNone;
  options.filter_groups = true;
  options.overlong = OverlongOptions{5, 0.75};
  const engines::Algorithm other = chosen_algorithm(options, 77);
  EXPECT_EQ(other.advantage, engines::AdvantageKind::kRloo);
  EXPECT_EQ(other.grpo.scale, engines::AdvantageScale::kNone);
  ASSERT_TRUE(other.group_filter.has_value());
  EXPECT_EQ(other.group_filter->rule, engines::GroupFilterRule::kNotAllEqual);
  ASSERT_TRUE(other.overlong.has_value());
  EXPECT_EQ(other.overlong->max_response, 77);
  EXPECT_EQ(other.overlong->buffer, 5);
  EXPECT_EQ(other.overlong->factor, 0.75);
  EXPECT_FALSE(other.overlong->cap);

  struct Case {
    LossAggregation chosen;
    engines::Aggregation expected;
    std::optional<std::int64_t> horizon;
  };
  const Case cases[] = {
      {LossAggregation::kTokenMean, engines::Aggregation::kTokenMean, {}},
      {LossAggregation::kSeqMeanTokenMean, engines::Aggregation::kSeqMeanTokenMean, {}},
      {LossAggregation::kSeqMeanTokenSum, engines::Aggregation::kSeqMeanTokenSum, {}},
      {LossAggregation::kFixedLength, engines::Aggregation::kBatchFixedLength, 77}};
  for (const Case& one : cases) {
    options.aggregation = one.chosen;
    const engines::AggregateOptions aggregate = chosen_algorithm(options, 77).policy.aggregate;
    EXPECT_EQ(aggregate.kind, one.expected);
    EXPECT_EQ(aggregate.horizon, one.horizon);
  }
}

TEST(SettingsMapping, TheKeysOfAnAlgorithmOfTheTableDescribeIt) {
  for (const engines::Algorithm& row : engines::algorithms()) {
    const engines::Algorithm chosen = chosen_algorithm(algorithm_keys(row), 77);
    EXPECT_EQ(chosen.name, row.name);
    EXPECT_EQ(chosen.advantage, row.advantage) << row.name;
    EXPECT_EQ(chosen.grpo.eps, row.grpo.eps) << row.name;
    EXPECT_EQ(chosen.policy.aggregate.kind, row.policy.aggregate.kind) << row.name;
    EXPECT_EQ(chosen.policy.clip_low, row.policy.clip_low) << row.name;
    EXPECT_EQ(chosen.policy.clip_high, row.policy.clip_high) << row.name;
    EXPECT_EQ(chosen.group_filter.has_value(), row.group_filter.has_value()) << row.name;
    if (row.advantage == engines::AdvantageKind::kGrpo) {
      EXPECT_EQ(chosen.grpo.scale, row.grpo.scale) << row.name;
    }
  }
}

TEST(SettingsMapping, OfTheTokensThatEndAResponse) {
  RlOptions options;
  options.rollout.stop_ids = {70, 71};
  engines::ModelFiles files;
  files.config.eos_token_ids = {2};
  EXPECT_THAT(stop_ids(options, files), ElementsAre(2, 70, 71));
  files.generation.eos_token_ids = {3, 4};
  EXPECT_THAT(stop_ids(options, files), ElementsAre(3, 4, 70, 71)) << "instead of the config's";
}

}  // namespace
}  // namespace tidemill::workflows
