// SPDX-License-Identifier: Apache-2.0
#include "adapter_training.hpp"

#include <tidemill/engines/runtime/memory_estimate.hpp>
#include <tidemill/engines/runtime/new_adapter.hpp>
#include <utility>

namespace training_job {

using namespace tidemill::engines;  // NOLINT(google-build-using-namespace): used throughout
using tidemill::Result;
using tidemill::Status;

namespace {

constexpr double kLearningRate = 5e-3;
constexpr std::int64_t kUnits = 16;  // of a call of `advance`

}  // namespace

Status add_sequence(const Tokenizer& tokenizer, const std::string& prompt,
                    const std::string& answer, TrainBatch& batch) {
  TrainSequence sequence;
  sequence.id = {batch.sequences.size()};
  TIDEMILL_ASSIGN_OR_RETURN(sequence.ids, tokenizer.encode(prompt, AddSpecialTokens::kNo));
  TIDEMILL_ASSIGN_OR_RETURN(const auto targets, tokenizer.encode(answer, AddSpecialTokens::kNo));
  sequence.response_mask.assign(sequence.ids.size(), 0);
  sequence.ids.insert(sequence.ids.end(), targets.begin(), targets.end());
  sequence.ids.push_back(tokenizer.eos_id().value());
  sequence.response_mask.resize(sequence.ids.size(), 1);
  batch.sequences.push_back(std::move(sequence));
  return {};
}

Result<AdapterTraining> open_training(ModelRuntime& runtime, const ModelFiles& model,
                                      TrainBatch batch, std::uint64_t seed) {
  AdapterConfig config;
  config.rank = 8;
  config.alpha = 16;
  config.targets = {ModuleSelector::Kind::kAllLinear, {}, {}};
  AdapterTraining training;
  TIDEMILL_ASSIGN_OR_RETURN(training.options.adapter,
                            make_adapter(config, model, tidemill::DType::kF32, seed));
  MemoryLoad load;
  double num_targets = 0;
  for (const TrainSequence& sequence : batch.sequences) {
    load.train_tokens += static_cast<std::int64_t>(sequence.ids.size());
    for (const std::uint8_t is_target : sequence.response_mask) {
      num_targets += is_target;
    }
  }
  // `set_budgets` computes the budgets of a runtime that trains this adapter. A job needs the same.
  RuntimeOptions budgets;
  budgets.adapter = training.options.adapter;
  set_budgets(model.config, load, budgets);
  training.options.activation_bytes = budgets.activation_bytes;
  training.batch = std::move(batch);
  training.loss = FocalLoss(num_targets);
  TIDEMILL_ASSIGN_OR_RETURN(training.job, runtime.open_job(training.options));
  return training;
}

Status advance(AdapterTraining& training) {
  TrainingJob& job = *training.job;
  if (!job.has_work() && !training.has_gradients) {
    TIDEMILL_RETURN_IF_ERROR(job.forward_backward(training.batch, training.loss));
    training.has_gradients = true;
  } else if (!job.has_work()) {
    OptimStep step;  // overrides the learning-rate schedule of the job's options
    const double share_done = static_cast<double>(training.losses.size()) / kSteps;
    step.learning_rate = kLearningRate * (1 - share_done);
    TIDEMILL_RETURN_IF_ERROR(job.optim_step(step));
    training.has_gradients = false;
  }
  StepBudget budget;
  budget.units = kUnits;
  // If the job waits for pages of the cache (`StepReport::waits_for_pages`), it does nothing. It
  // continues in a later call, after the other job has advanced.
  TIDEMILL_RETURN_IF_ERROR(job.advance(budget).status());
  if (!job.has_work() && !training.has_gradients) {
    training.losses.push_back(job.last_update().sums.at("loss"));
  }
  return {};
}

Result<std::vector<float>> logprobs(TrainingJob& job, const TrainBatch& batch) {
  TIDEMILL_RETURN_IF_ERROR(job.forward(batch));
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  std::vector<float> all;
  for (const TrainSequence& sequence : batch.sequences) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<float> row, job.logprobs(sequence.id));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace training_job
