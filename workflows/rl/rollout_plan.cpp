// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rollout_plan.hpp"

#include <algorithm>

#include "workflows/rl/rl_settings.hpp"

namespace tidemill::workflows {

std::uint32_t num_rollout_workers(const RlOptions& options) {
  return static_cast<std::uint32_t>(options.rollout.workers *
                                    std::max(options.placement.rollout.processes, 1));
}

namespace {

// Returns how many rows a worker may hold. All workers together can hold all rows in flight. With a
// fixed order, the workers of one process can: otherwise rows that wait for a later version could
// take all places, while that version waits for a row that was given back. The other processes may
// have been drained.
std::uint32_t max_in_flight(const RlOptions& options) {
  const bool fixed = options.staleness.schedule == StalenessSchedule::kFixed;
  const std::int64_t workers =
      fixed ? options.rollout.workers : std::int64_t{num_rollout_workers(options)};
  return static_cast<std::uint32_t>((max_concurrent_rows(options) + workers - 1) / workers);
}

}  // namespace

RolloutRoleOptions rollout_role_options(const RlOptions& options, const TrainedModel& model) {
  RolloutRoleOptions role;
  role.workers = num_rollout_workers(options);
  role.worker.max_in_flight = max_in_flight(options);
  role.worker.sampling = sampling_options(options.rollout);
  role.worker.seed = options.run.seed;
  role.worker.max_new_tokens = options.rollout.max_new_tokens;
  role.worker.stop_ids = stop_ids(options, model.files);
  role.worker.stop_strings = options.rollout.stop;
  return role;
}

engines::RuntimeOptions rollout_runtime_options(const RlOptions& options, const TrainedModel& model,
                                                const MemoryBudgets& budgets) {
  engines::RuntimeOptions runtime =
      runtime_options(model, options.model, options.train.common, 1, options.run.device);
  runtime.optimizer.reset();
  apply(budgets, runtime);
  return runtime;
}

MemoryPlan plan_rollout_process(const RlOptions& options, const TrainedModel& model,
                                const RlFacts& facts, std::int64_t longest_prompt,
                                std::optional<std::int64_t> kv_bytes) {
  engines::RuntimeOptions runtime = rollout_runtime_options(options, model, {});
  RunLoad load;
  load.engine = rollout_process_load(options, facts, longest_prompt);
  engines::set_budgets(model.files.config, load.engine, runtime);
  runtime.kv_bytes = kv_bytes.value_or(options.rollout.kv_bytes.value_or(runtime.kv_bytes));
  return make_memory_plan(model.files, runtime, load);
}

}  // namespace tidemill::workflows
