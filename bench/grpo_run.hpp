// SPDX-License-Identifier: Apache-2.0
// A short reinforcement-learning run, started like a user's: with `tidemill run`.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/engine_bench.hpp"

namespace tidemill::bench {

/// What the run trains on: prompts of digits, with responses of a fixed length.
struct GrpoShape {
  std::int64_t prompts = 8;  // per step
  std::int64_t group_size = 8;
  std::int64_t prompt_tokens = 16;
  std::int64_t new_tokens = 32;
  std::int64_t rank = 16;  // of the adapter on all linear layers
};

/// The model of a run, and how long the run is.
struct GrpoRunOptions {
  const char* preset = nullptr;  // unless the user names a model
  DType compute = DType::kF32;
  DType stored = DType::kF32;  // in the files of a preset
  std::int64_t steps = 1;
};

/// Time and memory of a run, measured from outside. Units: seconds, bytes.
struct GrpoRun {
  double start_seconds = 0.0;        // from the start of the process to the end of the first step
  std::vector<double> step_seconds;  // of all steps but the first, from end to end
  double peak_bytes = 0.0;
  double expected_bytes = 0.0;  // the peak that `tidemill run --dry-run` expects
};

/// Runs synchronous GRPO steps (`staleness.max: 0`, one optimizer step each) in a separate process,
/// on the model of `options` without its end tokens.
/// Errors: those of the process; `kInternal` if the responses of a step do not have the full length
/// or the step has no gradient.
[[nodiscard]] Result<GrpoRun> run_grpo(const EngineBenchOptions& options, const GrpoShape& shape,
                                       const GrpoRunOptions& how);

}  // namespace tidemill::bench
