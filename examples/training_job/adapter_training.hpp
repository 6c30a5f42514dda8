// SPDX-License-Identifier: Apache-2.0
// The training of one adapter over a base model that others use at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tidemill/engines/formats/model_files.hpp>
#include <tidemill/engines/runtime/model_runtime.hpp>
#include <tidemill/engines/tokenizer/tokenizer.hpp>
#include <vector>

#include "focal_loss.hpp"

namespace training_job {

/// The number of optimizer steps of a training.
inline constexpr std::size_t kSteps = 30;

/// A training job with its data, and the progress that it has made.
struct AdapterTraining {
  tidemill::engines::TrainBatch batch;  // the minibatch of every optimizer step
  FocalLoss loss{1};
  tidemill::engines::JobOptions options;
  /// Declared after the loss, which must outlive the job's work.
  std::unique_ptr<tidemill::engines::TrainingJob> job;
  bool has_gradients = false;  // `forward_backward` has started for the next optimizer step
  std::vector<double> losses;  // one for each optimizer step
};

/// Appends a sequence to `batch`. Its targets are the tokens of `answer` and the end token.
[[nodiscard]] tidemill::Status add_sequence(const tidemill::engines::Tokenizer& tokenizer,
                                            const std::string& prompt, const std::string& answer,
                                            tidemill::engines::TrainBatch& batch);

/// Makes the training of a new adapter, which is initialized at random from `seed`, and opens its
/// job.
[[nodiscard]] tidemill::Result<AdapterTraining> open_training(
    tidemill::engines::ModelRuntime& runtime, const tidemill::engines::ModelFiles& model,
    tidemill::engines::TrainBatch batch, std::uint64_t seed);

/// Runs a few units. If the job has no work, starts a backward pass or an optimizer step first.
[[nodiscard]] tidemill::Status advance(AdapterTraining& training);

/// Returns the log-probabilities of all sequences of `batch`, one after the other.
[[nodiscard]] tidemill::Result<std::vector<float>> logprobs(
    tidemill::engines::TrainingJob& job, const tidemill::engines::TrainBatch& batch);

}  // namespace training_job
