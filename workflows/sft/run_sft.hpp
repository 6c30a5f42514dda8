// SPDX-License-Identifier: Apache-2.0
// Supervised fine-tuning from options: opens what they name, runs the actors, exports the result.
#pragma once

#include "base/result.hpp"
#include "workflows/model_run.hpp"
#include "workflows/sft_options.hpp"

namespace tidemill::workflows {

/// Runs a supervised run to its end, from its last commit if it has one.
///
/// Blocks until the run is over; `run.directory`/export then holds the trained model.
/// Errors: one line naming file, key or row for what cannot be used; why the run ended otherwise.
[[nodiscard]] Result<actors::RunSummary> run_sft(const SftOptions& options,
                                                 const RunEnvironment& run);

/// Returns what a run of these options on `model` holds in memory at most.
[[nodiscard]] MemoryPlan plan_memory(const SftOptions& options, const TrainedModel& model);

/// Returns what a run of these options on `model` is likely to hold at its peak, `most` being what
/// it holds at most; reads all its data. Errors: those of the data.
[[nodiscard]] Result<MemoryPlan> expect_memory(const SftOptions& options, const TrainedModel& model,
                                               const MemoryPlan& most, const DataReading& how);

}  // namespace tidemill::workflows
