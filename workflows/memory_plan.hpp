// SPDX-License-Identifier: Apache-2.0
// How much memory a run will use, and how much it may use.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "base/status.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "workflows/run_options.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

struct MemoryLimit;

/// The maximum number of tokens of a sequence that the backward pass does not split, and the length
/// of a window if it does. This is a constant, so that no bit depends on how much memory a machine
/// has.
inline constexpr std::int64_t kWindowTokens = 2048;

/// Returns the `RuntimeOptions::window_tokens` for data whose longest sequence has `longest`
/// tokens.
[[nodiscard]] constexpr std::int64_t window_for(std::int64_t longest) noexcept {
  return longest > kWindowTokens ? kWindowTokens : 0;
}

/// Returns the `RuntimeOptions::window_tokens` for training beside generation, where an iteration
/// may wait for one window in one layer: a multiple of 64, at most `kWindowTokens`, and fewer the
/// larger the layers are. Depends on the model alone, so that no bit depends on the machine.
[[nodiscard]] std::int64_t window_beside_generation(const engines::ModelConfig& model) noexcept;

/// The sizes and policies of a runtime that a memory plan chooses.
struct MemoryBudgets {
  engines::Recompute recompute = engines::Recompute::kNone;
  std::int64_t window_tokens = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t activation_bytes = 0;
  engines::RowLimits limits = {};
};

/// Returns the budgets in `runtime`.
[[nodiscard]] MemoryBudgets budgets_of(const engines::RuntimeOptions& runtime) noexcept;
/// Writes `budgets` to `runtime`.
void apply(const MemoryBudgets& budgets, engines::RuntimeOptions& runtime) noexcept;

/// The memory of a run's other processes, and what they share with the process of the run.
struct ProcessesMemory {
  std::int64_t rollout_bytes = 0;  // of all rollout processes
  std::int64_t reward_bytes = 0;   // of all reward processes
  std::int64_t shared_bytes = 0;   // weights and cells in shared memory, once
  [[nodiscard]] std::int64_t total() const noexcept {
    return rollout_bytes + reward_bytes + shared_bytes;
  }
};

/// The memory of a run, by part: an upper bound or the expected peak. Units: bytes.
struct MemoryPlan {
  engines::MemoryEstimate engine;
  MemoryBudgets budgets;  // those that `engine` assumes
  /// Memory of the process before the run, without the part that `engine` counts. 0 if the system
  /// does not report it, and for a run on the device of a server, whose plan counts the process.
  std::int64_t program_bytes = 0;
  std::int64_t stream_bytes = 0;  // rows between the stages
  std::int64_t best_bytes = 0;    // the best weights, with `eval.keep_best`
  /// Constraints of responses that a server keeps compiled.
  std::int64_t constraint_bytes = 0;
  ProcessesMemory processes;
  std::string note;  // what the plan leaves out, and why; empty: nothing
  [[nodiscard]] std::int64_t total() const noexcept {
    return program_bytes + engine.total() + stream_bytes + best_bytes + constraint_bytes +
           processes.total();
  }
};

/// The two plans of a run.
struct RunPlans {
  MemoryPlan expected;
  MemoryPlan maximum;  // an upper bound; the runtime is opened with its budgets
};

/// What a run holds in memory: an upper bound or the expected load.
struct RunLoad {
  engines::MemoryLoad engine;
  std::int64_t stream_bytes = 0;
  bool keeps_best = false;  // `eval.keep_best`
  std::int64_t constraint_bytes = 0;
  ProcessesMemory processes = {};
  /// Memory that the process uses before the run. Without it, the plan measures it.
  std::optional<std::int64_t> program_bytes = {};
};

/// Returns the memory plan of a run or server that has not started yet. Unless the load shares a
/// base (`MemoryLoad::shares_base`), counts as `program_bytes` what the process uses without the
/// weights.
[[nodiscard]] MemoryPlan make_memory_plan(const engines::ModelFiles& model,
                                          const engines::RuntimeOptions& runtime,
                                          const RunLoad& load);

/// Returns "recompute cheap, windows of 2048 tokens", or "" if nothing is computed again and no
/// sequence is split.
[[nodiscard]] std::string policy_text(const MemoryBudgets& budgets);

/// Returns the plan in one line: "26.4 MiB: program 10.0, weights 12.1, ...; NOTE".
[[nodiscard]] std::string to_text(const MemoryPlan& plan);

/// Returns how many threads a run starts: those of the actor system, of its ports and of the
/// model's runtime. A limit on address space counts the stack of each.
[[nodiscard]] int later_threads(const DeviceOptions& device);

/// Returns a one-line warning if `device.memory_bytes` exceeds `limit`, which is what the machine
/// and the limits of the process allow (`process_memory_limit`). Otherwise returns "".
[[nodiscard]] std::string memory_warning(const DeviceOptions& device, const MemoryLimit& limit);

/// Returns how much memory a run may use: `memory_bytes` if it is set, else the smallest of the
/// machine's memory and the limits of the process (process_limits.hpp). Units: bytes.
[[nodiscard]] std::int64_t allowed_memory(const DeviceOptions& device);

/// Returns "40.0 MiB are allowed (ulimit -v)", for `allowed_memory` and what sets it.
[[nodiscard]] std::string allowed_text(const DeviceOptions& device);

/// Returns the first of `plans` that fits into the allowed memory, or the last one if none does.
/// Requires at least one plan.
[[nodiscard]] MemoryPlan first_allowed(std::initializer_list<MemoryPlan> plans,
                                       const DeviceOptions& device);

/// Returns the plan that `plan_of` makes for the chosen policy. For kAuto, tries kNone, kCheap and
/// kLayer in this order and returns the first plan that fits, or the last one if none does.
[[nodiscard]] MemoryPlan choose_plan(RecomputeChoice choice, const DeviceOptions& device,
                                     const std::function<MemoryPlan(engines::Recompute)>& plan_of);

/// Returns the plan for micro-batches of `wanted` tokens, or of `least` if that is more. If it does
/// not fit, returns the plan for `least`. Either plan is the one that `choose_plan` returns.
[[nodiscard]] MemoryPlan choose_micro_batch(
    RecomputeChoice choice, const DeviceOptions& device, std::int64_t wanted, std::int64_t least,
    const std::function<MemoryPlan(engines::Recompute, std::int64_t train_tokens)>& plan_for);

/// The longest row of a run's data.
struct LongestRow {
  std::int64_t tokens = 0;
  std::string location;  // "FILE:LINE"; empty: unknown
  std::string what;      // what has so many tokens, such as "the sequence"
};

/// Checks, before a run starts, that its longest row fits into the allowed memory. `plan_for`
/// returns the plan of the same run with a longest row of the given number of tokens.
/// Errors: those of `check_memory` if no row would fit or the row's location is unknown; else
/// `kInvalidArgument` naming the row's location, and how many tokens fit.
[[nodiscard]] Status check_longest_row(const LongestRow& row, const DeviceOptions& device,
                                       const std::function<MemoryPlan(std::int64_t)>& plan_for);

/// Checks, before a run starts, that it fits into the allowed memory.
/// Errors: `kInvalidArgument` naming `device.memory_bytes`, the allowed and the needed memory, the
/// limit of the process that is the reason, the excess, and the parts of the plan.
[[nodiscard]] Status check_memory(const MemoryPlan& plan, const DeviceOptions& device);

}  // namespace tidemill::workflows
