// SPDX-License-Identifier: Apache-2.0
// What a run of reinforcement learning came to: the model before and after, graded from the files.
#pragma once

#include "base/result.hpp"
#include "launcher/runs/run_session.hpp"
#include "workflows/model_run.hpp"

namespace tidemill::launcher {

/// Grades the model that a finished run started from and the one it exported on `data.eval`, and
/// prints both accuracies and five answers of each. `started` is for chat templates. Does nothing
/// for a run without evaluation. Errors: of `grade_model`.
[[nodiscard]] Status print_before_and_after(const RunPlace& place, const std::string& started,
                                            const workflows::RunEnvironment& run, Session& session);

}  // namespace tidemill::launcher
