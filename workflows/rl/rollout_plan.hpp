// SPDX-License-Identifier: Apache-2.0
// What the options of a run say about the role "rollout", in whichever process it is.
#pragma once

#include <cstdint>
#include <optional>

#include "engines/runtime/runtime_options.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rl/rl_load.hpp"
#include "workflows/rl/rollout_role.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// Returns the number of rollout workers in all processes.
[[nodiscard]] std::uint32_t num_rollout_workers(const RlOptions& options);

/// Returns the options of the role, without its ports.
[[nodiscard]] RolloutRoleOptions rollout_role_options(const RlOptions& options,
                                                      const TrainedModel& model);

/// Returns the options of a runtime that only generates, in a process of its own. `budgets` are
/// those of its memory plan.
[[nodiscard]] engines::RuntimeOptions rollout_runtime_options(const RlOptions& options,
                                                              const TrainedModel& model,
                                                              const MemoryBudgets& budgets);

/// Returns the upper bound of the memory of one rollout process if the longest prompt has
/// `longest_prompt` tokens. Without `kv_bytes`, its cache has the size that `rollout.kv_bytes`
/// gives, or else room for all samples that may run at the same time.
[[nodiscard]] MemoryPlan plan_rollout_process(const RlOptions& options, const TrainedModel& model,
                                              const RlFacts& facts, std::int64_t longest_prompt,
                                              std::optional<std::int64_t> kv_bytes = {});

}  // namespace tidemill::workflows
