// SPDX-License-Identifier: Apache-2.0
// Carries out a supervised fine-tuning run: opens its files, runs its actors, exports the result.
#pragma once

#include "base/result.hpp"
#include "workflows/model_run.hpp"
#include "workflows/sft_options.hpp"

namespace tidemill::workflows {

/// Carries out a supervised run, from its last commit if it has one.
///
/// Blocks until the run has ended. `run.directory`/export then holds the trained model.
/// Errors: one line that names the file, key or row that cannot be used, or says why the run
/// failed.
[[nodiscard]] Result<actors::RunSummary> run_sft(const SftOptions& options,
                                                 const RunEnvironment& run);

/// Plans the memory of a run of these options on `model`. Reads all of the run's data.
/// Errors: those of the data; `kInvalidArgument` naming the longest row if the run does not fit.
[[nodiscard]] Result<RunPlans> plan_memory(const SftOptions& options, const TrainedModel& model,
                                           const DataReading& how);

/// Returns the plan of what a run of these options takes at least on the device of a server
/// (`SharedDevice`) beside what the server takes, to train one sequence of `longest_tokens` tokens:
/// that of the `recompute` policy that takes least. Reads no data.
[[nodiscard]] MemoryPlan least_shared_plan(SftOptions options, const TrainedModel& model,
                                           std::int64_t longest_tokens);

}  // namespace tidemill::workflows
