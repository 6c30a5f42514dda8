// SPDX-License-Identifier: Apache-2.0
// What a run will hold in memory, and what it may.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "base/status.hpp"
#include "engines/runtime/factory.hpp"
#include "workflows/run_options.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

/// What a run holds: the most, or what is likely. Units: bytes.
struct MemoryPlan {
  engines::MemoryEstimate engine;
  engines::Recompute recompute = engines::Recompute::kNone;  // what `engine` rests on
  /// The process before the run, without what of it `engine` counts; 0: the system does not tell.
  std::int64_t program_bytes = 0;
  std::int64_t stream_bytes = 0;  // rows between the stages
  std::int64_t best_bytes = 0;    // the best weights so far, where they are kept
  [[nodiscard]] std::int64_t total() const noexcept {
    return program_bytes + engine.total() + stream_bytes + best_bytes;
  }
};

/// What a run puts into memory: the most, or what is likely.
struct RunLoad {
  engines::MemoryLoad engine;
  std::int64_t stream_bytes = 0;
  bool keeps_best = false;  // `eval.keep_best`
};

/// Returns the plan of a run that has yet to begin: what the process holds now is its program.
[[nodiscard]] MemoryPlan make_memory_plan(const engines::ModelFiles& model,
                                          const engines::RuntimeOptions& runtime,
                                          const RunLoad& load);

/// Returns "26.4 MiB".
[[nodiscard]] std::string mebibytes_text(std::int64_t bytes);

/// Returns the plan in one line: "26.4 MiB: program 10.0, weights 12.1, ...".
[[nodiscard]] std::string to_text(const MemoryPlan& plan);

/// Returns what a run may take: `memory_bytes`, or what the machine has and its control groups
/// (version 2) allow. Units: bytes.
[[nodiscard]] std::int64_t allowed_memory(const DeviceOptions& device);

/// Returns the first of `plans` that may be taken, or the last. Requires a plan.
[[nodiscard]] MemoryPlan first_allowed(std::initializer_list<MemoryPlan> plans,
                                       const DeviceOptions& device);

/// Returns the plan of the policy chosen or, of kAuto, the first that may be taken of those that
/// `plan_of` makes, or the last.
[[nodiscard]] MemoryPlan choose_plan(RecomputeChoice choice, const DeviceOptions& device,
                                     const std::function<MemoryPlan(engines::Recompute)>& plan_of);

/// Refuses a run that would not fit, before it starts.
/// Errors: `kInvalidArgument` naming `device.memory_bytes`, what is needed, how much more than
/// allowed, and for what.
[[nodiscard]] Status check_memory(const MemoryPlan& plan, const DeviceOptions& device);

}  // namespace tidemill::workflows
