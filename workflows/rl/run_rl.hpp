// SPDX-License-Identifier: Apache-2.0
// Carries out a reinforcement-learning run: opens its files, runs its actors, exports the result.
#pragma once

#include "base/result.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// Carries out a reinforcement-learning run, from its last commit if it has one.
///
/// Blocks until the run has ended. `run.directory`/export then holds the trained model.
/// Errors: those of `open_trained_model`, `plan_memory`, `check_total_steps`, `make_rewards` and
/// `export_weights`; `kUnavailable` if none of the run's samples could be scored; the failure of
/// the run.
[[nodiscard]] Result<actors::RunSummary> run_rl(const RlOptions& options,
                                                const RunEnvironment& run);

/// Returns the number of steps of a run with these options and `num_prompts` rows of data.
/// Errors: `kInvalidArgument` if the data does not fill one batch.
[[nodiscard]] Result<std::uint64_t> total_steps(const RlOptions& options,
                                                std::uint64_t num_prompts);

/// Plans the memory of a run of these options on `model`. Reads all of the run's data.
/// Errors: those of `TextCodec::load` and `open_data_set`; `kInvalidArgument` naming file and line
/// of a row that cannot be used, or naming the longest prompt or a key if the run does not fit.
[[nodiscard]] Result<RunPlans> plan_memory(const RlOptions& options, const TrainedModel& model,
                                           const DataReading& how);

}  // namespace tidemill::workflows
