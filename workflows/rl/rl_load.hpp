// SPDX-License-Identifier: Apache-2.0
// What goes through the model at once in reinforcement learning, for memory plans.
#pragma once

#include <cstdint>

#include "actors/data/lengths.hpp"
#include "engines/runtime/factory.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// What is known of a run before it starts.
struct RlFacts {
  actors::Lengths prompts;       // of `data.train`
  actors::Lengths eval_prompts;  // of `data.eval`; none: nothing is evaluated
  std::uint64_t steps = 0;
  std::int64_t max_running = 256;  // `RuntimeOptions::max_running`
};

/// Returns the most that the options allow on a model of `config`.
[[nodiscard]] engines::MemoryLoad most_load(const RlOptions& options,
                                            const engines::ModelConfig& config);

/// Returns what is likely: prompts as long as those of the data, answers of full length.
[[nodiscard]] engines::MemoryLoad likely_load(const RlOptions& options, const RlFacts& facts);

}  // namespace tidemill::workflows
