// SPDX-License-Identifier: Apache-2.0
// Translates the options of supervised fine-tuning into those of actors.
#pragma once

#include <cstdint>

#include "actors/supervised/spawn.hpp"
#include "base/status.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "workflows/sft_options.hpp"

namespace tidemill::workflows {

/// Checks that the model can keep sequences of the maximum length.
/// Errors: `kInvalidArgument` naming `data.max_prompt_tokens`.
[[nodiscard]] Status check_fit(const SftOptions& options, const engines::ModelConfig& config);

/// Returns the options of the trainer of a run of `steps` steps. The caller adds the sequences, the
/// state of the commit, and what the trainer works with.
[[nodiscard]] actors::SupervisedDeps supervised_deps(const SftOptions& options,
                                                     std::uint64_t steps);

}  // namespace tidemill::workflows
