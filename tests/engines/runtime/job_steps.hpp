// SPDX-License-Identifier: Apache-2.0
// The verbs of a training job that tests run to their end.
#pragma once

#include <utility>
#include <vector>

#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Starts `forward_backward` or, if `loss` is null, `forward`.
[[nodiscard]] inline Status begin(TrainingJob& job, std::vector<TrainSequence> batch,
                                  TokenLoss* loss, float temperature = 1.0F) {
  TrainBatch all{std::move(batch), temperature};
  return loss != nullptr ? job.forward_backward(std::move(all), *loss)
                         : job.forward(std::move(all));
}

/// Takes an optimizer step.
[[nodiscard]] inline Result<UpdateReport> update(TrainingJob& job, const OptimStep& step = {}) {
  TIDEMILL_RETURN_IF_ERROR(job.optim_step(step));
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  return job.last_update();
}

/// Publishes the weights.
[[nodiscard]] inline Result<Snapshot> publish(TrainingJob& job, PolicyVersion version) {
  TIDEMILL_RETURN_IF_ERROR(job.save(version));
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  return job.take_snapshot();
}

/// Copies the optimizer state.
[[nodiscard]] inline Result<TensorMap> optimizer_state(TrainingJob& job) {
  TIDEMILL_RETURN_IF_ERROR(job.capture());
  TIDEMILL_RETURN_IF_ERROR(run_to_end(job));
  return job.take_optimizer_state();
}

}  // namespace tidemill::engines
