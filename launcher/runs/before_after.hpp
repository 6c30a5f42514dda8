// SPDX-License-Identifier: Apache-2.0
// Compares the models before and after a reinforcement-learning run, evaluated from their files.
#pragma once

#include "base/result.hpp"
#include "launcher/runs/run_session.hpp"
#include "workflows/model_run.hpp"

namespace tidemill::launcher {

/// Evaluates two models on `data.eval`: the one that a finished run started from, and the one that
/// it exported. Prints the mean reward and five responses of each. Does not evaluate the first
/// model if its weights were random. `started` is the time for chat templates. Does nothing for a
/// run without evaluation.
/// Errors: those of `evaluate_model`.
[[nodiscard]] Status print_before_and_after(const RunContext& context, const std::string& started,
                                            const workflows::RunEnvironment& run, Session& session);

}  // namespace tidemill::launcher
