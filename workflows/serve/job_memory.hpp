// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. Says before a fine-tuning job starts whether its adapter can fit.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "workflows/data_options.hpp"
#include "workflows/model_run.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

/// The memory that a server leaves to its jobs.
struct JobShare {
  std::int64_t bytes = 0;  // that one job may take
  std::int64_t jobs = 0;   // the most that train at the same time
};

/// What a job trains: an adapter over the model that the server has opened.
struct JobModel {
  const ModelOptions& options;
  const engines::ModelFiles& files;
};

/// Checks that a job with a new LoRA adapter fits its share of memory with rows of 2 tokens, the
/// shortest possible. Does not create the adapter.
/// Errors: `kInvalidArgument` beginning with `train.adapter.rank`, with the largest rank that fits;
/// those of `check_adapter`.
[[nodiscard]] Status check_rank(const TrainOptions& train, const JobModel& model,
                                const JobShare& share);

}  // namespace tidemill::workflows
