// SPDX-License-Identifier: Apache-2.0
// How much memory a run will use, and how much it may use.
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

/// The memory of a run, by part: an upper bound or the expected peak. Units: bytes.
struct MemoryPlan {
  engines::MemoryEstimate engine;
  engines::Recompute recompute = engines::Recompute::kNone;  // the policy that `engine` assumes
  /// Memory of the process before the run, without the part that `engine` counts. 0 if the system
  /// does not report it.
  std::int64_t program_bytes = 0;
  std::int64_t stream_bytes = 0;  // rows between the stages
  std::int64_t best_bytes = 0;    // the best weights, with `eval.keep_best`
  [[nodiscard]] std::int64_t total() const noexcept {
    return program_bytes + engine.total() + stream_bytes + best_bytes;
  }
};

/// What a run has to fit into memory: an upper bound or the expected load.
struct RunLoad {
  engines::MemoryLoad engine;
  std::int64_t stream_bytes = 0;
  bool keeps_best = false;  // `eval.keep_best`
};

/// Returns the memory plan of a run that has not started yet. The memory that the process uses at
/// the time of the call counts as its program.
[[nodiscard]] MemoryPlan make_memory_plan(const engines::ModelFiles& model,
                                          const engines::RuntimeOptions& runtime,
                                          const RunLoad& load);

/// Returns "26.4 MiB".
[[nodiscard]] std::string mebibytes_text(std::int64_t bytes);

/// Returns the plan in one line: "26.4 MiB: program 10.0, weights 12.1, ...".
[[nodiscard]] std::string to_text(const MemoryPlan& plan);

/// Returns how much memory a run may use: `memory_bytes` if it is set, else the smaller of the
/// machine's memory and the limit of its control groups (version 2). Units: bytes.
[[nodiscard]] std::int64_t allowed_memory(const DeviceOptions& device);

/// Returns the first of `plans` that fits into the allowed memory, or the last one if none does.
/// Requires at least one plan.
[[nodiscard]] MemoryPlan first_allowed(std::initializer_list<MemoryPlan> plans,
                                       const DeviceOptions& device);

/// Returns the plan that `plan_of` makes for the chosen policy. For kAuto, tries kNone, kCheap and
/// kLayer in this order and returns the first plan that fits, or the last one if none does.
[[nodiscard]] MemoryPlan choose_plan(RecomputeChoice choice, const DeviceOptions& device,
                                     const std::function<MemoryPlan(engines::Recompute)>& plan_of);

/// Checks, before a run starts, that it fits into the allowed memory.
/// Errors: `kInvalidArgument` naming `device.memory_bytes`, the allowed and the needed memory, the
/// excess, and the parts of the plan.
[[nodiscard]] Status check_memory(const MemoryPlan& plan, const DeviceOptions& device);

}  // namespace tidemill::workflows
