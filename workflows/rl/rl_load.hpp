// SPDX-License-Identifier: Apache-2.0
// Estimates the load of a reinforcement-learning run on the model's memory, for memory plans.
#pragma once

#include <cstdint>

#include "actors/data/lengths.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// What is known about a run before it starts.
struct RlFacts {
  actors::Lengths prompts;       // of `data.train`
  actors::Lengths eval_prompts;  // of `data.eval`; empty if nothing is evaluated
  std::uint64_t steps = 0;
  std::int64_t max_running = 256;  // `RuntimeOptions::max_running`
  bool shares_base = false;        // `engines::MemoryLoad::shares_base`
};

/// Returns whether each step trains on samples of its own weights and changes the weights once, at
/// its end. Training can then take over what generation in the same process computed.
[[nodiscard]] bool trains_on_policy(const RlOptions& options) noexcept;

/// Returns the largest load that the options allow if the longest prompt has `longest_prompt`
/// tokens. Its `kv_tokens` are those that generation and training can use at a time when every
/// response has full length.
[[nodiscard]] engines::MemoryLoad peak_load(const RlOptions& options, const RlFacts& facts,
                                            std::int64_t longest_prompt);

/// Returns the length of the longest sequence of the run, in tokens, if the longest prompt has
/// `longest_prompt` tokens.
[[nodiscard]] std::int64_t longest_sequence(const RlOptions& options, std::int64_t longest_prompt);

/// Returns the largest load of a process that only generates, one of those that
/// `placement.rollout.processes` counts. Its weights are loaded while others are served.
[[nodiscard]] engines::MemoryLoad rollout_process_load(const RlOptions& options,
                                                       const RlFacts& facts,
                                                       std::int64_t longest_prompt);

/// Returns the expected load: prompts as long as those of the data, responses of maximum length.
[[nodiscard]] engines::MemoryLoad likely_load(const RlOptions& options, const RlFacts& facts);

}  // namespace tidemill::workflows
