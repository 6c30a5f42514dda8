// SPDX-License-Identifier: Apache-2.0
// A short run of reinforcement learning as a user starts one: `tidemill run` of a file.
#pragma once

#include <cstdint>
#include <vector>

#include "launcher/bench/engine_bench.hpp"

namespace tidemill::launcher {

/// What the run trains on: prompts of digits, whose answers go on to a fixed length.
struct GrpoShape {
  std::int64_t prompts = 8;  // of a step
  std::int64_t group_size = 8;
  std::int64_t prompt_tokens = 16;
  std::int64_t new_tokens = 32;
  std::int64_t rank = 16;  // of the adapter on all linear layers
};

/// What a run took, seen from outside. Units: seconds, bytes.
struct GrpoRun {
  double start_seconds = 0.0;        // from the start of the process to the end of the first step
  std::vector<double> step_seconds;  // of each step but the first, from one's end to the next's
  double peak_bytes = 0.0;
};

/// Carries out `steps` synchronous GRPO steps (`staleness.max: 0`, one update each) in a process of
/// their own, on the bench's model without its end tokens.
/// Errors: those of the process; `kInternal` when an answer was cut off.
[[nodiscard]] Result<GrpoRun> run_grpo(const EngineBenchOptions& options, const GrpoShape& shape,
                                       DType compute, std::int64_t steps, const char* preset);

}  // namespace tidemill::launcher
