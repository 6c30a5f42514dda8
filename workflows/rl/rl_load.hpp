// SPDX-License-Identifier: Apache-2.0
// Estimates the load of a reinforcement-learning run on the model's memory, for memory plans.
#pragma once

#include <cstdint>

#include "actors/data/lengths.hpp"
#include "engines/runtime/factory.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// What is known about a run before it starts.
struct RlFacts {
  actors::Lengths prompts;       // of `data.train`
  actors::Lengths eval_prompts;  // of `data.eval`; empty if nothing is evaluated
  std::uint64_t steps = 0;
  std::int64_t max_running = 256;  // `RuntimeOptions::max_running`
};

/// Returns the largest load that the options allow on a model of `config`.
[[nodiscard]] engines::MemoryLoad peak_load(const RlOptions& options,
                                            const engines::ModelConfig& config);

/// Returns the expected load: prompts as long as those of the data, responses of maximum length.
[[nodiscard]] engines::MemoryLoad likely_load(const RlOptions& options, const RlFacts& facts);

}  // namespace tidemill::workflows
