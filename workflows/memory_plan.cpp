// SPDX-License-Identifier: Apache-2.0
#include "workflows/memory_plan.hpp"

#include <algorithm>

#include "base/text/mebibytes.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/process_memory.hpp"

namespace tidemill::workflows {
namespace {

// The threads that a run starts besides those of the actor system and `device.threads`: its ports.
constexpr int kPortThreads = 7;
// The multiplications by the weights of a layer that one window beside generation may take in a
// forward pass: about 10 ms on two cores with AVX-512. The backward pass takes twice as long.
constexpr std::int64_t kUnitProducts = std::int64_t{3} << 30U;
constexpr std::int64_t kWindowStep = 64;

MemoryLimit memory_limit(const DeviceOptions& device) {
  return device.memory_bytes > 0 ? MemoryLimit{device.memory_bytes, {}}
                                 : process_memory_limit(later_threads(device));
}

// Returns "program 10.0, weights 12.1, ...".
std::string parts_of(const MemoryPlan& plan) {
  const engines::MemoryEstimate& engine = plan.engine;
  const std::string policy = policy_text(plan.budgets);
  std::string text =
      (plan.program_bytes > 0 ? "program " + mebibytes(plan.program_bytes) + ", " : "") +
      "weights " + mebibytes(engine.weights_bytes) +
      (engine.kv_bytes > 0 ? ", cached keys and values " + mebibytes(engine.kv_bytes) : "") +
      ", activations " + mebibytes(engine.activation_bytes) + " (" +
      (policy.empty() ? "recompute none" : policy) + "), gradients " +
      mebibytes(engine.gradient_bytes) + ", optimizer " + mebibytes(engine.optimizer_bytes) +
      ", commits " + mebibytes(engine.capture_bytes);
  if (engine.generated_bytes > 0) {
    text += ", rows generated for training " + mebibytes(engine.generated_bytes);
  }
  if (plan.stream_bytes > 0) {
    text += ", stream " + mebibytes(plan.stream_bytes);
  }
  if (plan.best_bytes > 0) {
    text += ", best weights " + mebibytes(plan.best_bytes);
  }
  if (plan.processes.rollout_bytes > 0) {
    text += ", rollout processes " + mebibytes(plan.processes.rollout_bytes);
  }
  if (plan.processes.reward_bytes > 0) {
    text += ", reward processes " + mebibytes(plan.processes.reward_bytes);
  }
  if (plan.processes.shared_bytes > 0) {
    text += ", shared with them " + mebibytes(plan.processes.shared_bytes);
  }
  if (plan.constraint_bytes > 0) {
    text += ", constraints of responses " + mebibytes(plan.constraint_bytes);
  }
  return text;
}

// Returns "40.0 MiB are allowed (ulimit -v)".
std::string limit_text(const MemoryLimit& limit) {
  return mebibytes(limit.bytes) + " MiB are allowed" +
         (limit.name.empty() ? "" : " (" + limit.name + ")");
}

// Returns "40.0 MiB are allowed (ulimit -v), and the run may need 52.5 MiB, 12.5 more: program
// 20.0, ...".
std::string shortage_text(const MemoryPlan& plan, const MemoryLimit& limit) {
  return limit_text(limit) + ", and the run may need " + mebibytes(plan.total()) + " MiB, " +
         mebibytes(plan.total() - limit.bytes) + " more: " + parts_of(plan);
}

}  // namespace

int later_threads(const DeviceOptions& device) {
  return kActorSystemThreads + kPortThreads + engines::num_threads(device.threads);
}

std::string memory_warning(const DeviceOptions& device, const MemoryLimit& limit) {
  if (device.memory_bytes <= limit.bytes) {
    return {};
  }
  return mebibytes(device.memory_bytes) + " MiB are more than " +
         (limit.name.empty() ? "the machine's memory" : limit.name + " allows") + ", " +
         mebibytes(limit.bytes) + " MiB; the system may end the run";
}

std::int64_t window_beside_generation(const engines::ModelConfig& model) noexcept {
  const std::int64_t head_columns = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
  const std::int64_t per_row = model.hidden_size * (head_columns + 3 * model.intermediate_size);
  const std::int64_t rows = kUnitProducts / per_row / kWindowStep * kWindowStep;
  return std::clamp(rows, kWindowStep, kWindowTokens);
}

MemoryBudgets budgets_of(const engines::RuntimeOptions& runtime) noexcept {
  return {runtime.recompute, runtime.window_tokens, runtime.kv_bytes, runtime.activation_bytes,
          runtime.limits};
}

void apply(const MemoryBudgets& budgets, engines::RuntimeOptions& runtime) noexcept {
  runtime.recompute = budgets.recompute;
  runtime.window_tokens = budgets.window_tokens;
  runtime.kv_bytes = budgets.kv_bytes;
  runtime.activation_bytes = budgets.activation_bytes;
  runtime.limits = budgets.limits;
}

MemoryPlan make_memory_plan(const engines::ModelFiles& model,
                            const engines::RuntimeOptions& runtime, const RunLoad& load) {
  MemoryPlan plan;
  plan.budgets = budgets_of(runtime);
  plan.engine = engines::estimate_memory(model, runtime, load.engine);
  plan.stream_bytes = load.stream_bytes;
  plan.best_bytes = load.keeps_best ? plan.engine.published_bytes : 0;
  plan.constraint_bytes = load.constraint_bytes;
  plan.processes = load.processes;
  if (!load.engine.shares_base) {
    const std::int64_t used =
        load.program_bytes.has_value() ? *load.program_bytes : program_bytes().value_or(0);
    // Given weights are already in the process's memory. They count as weights, not as program.
    plan.program_bytes = std::max<std::int64_t>(used - plan.engine.preloaded_bytes, 0);
  }
  return plan;
}

std::string policy_text(const MemoryBudgets& budgets) {
  std::string text;
  if (budgets.recompute != engines::Recompute::kNone) {
    text = std::string("recompute ") + engines::recompute_name(budgets.recompute);
  }
  if (budgets.window_tokens > 0) {
    text += text.empty() ? "" : ", ";
    text += "windows of " + std::to_string(budgets.window_tokens) + " tokens";
  }
  return text;
}

std::string to_text(const MemoryPlan& plan) {
  return mebibytes_text(plan.total()) + ": " + parts_of(plan) +
         (plan.note.empty() ? "" : "; " + plan.note);
}

MemoryPlan first_allowed(std::initializer_list<MemoryPlan> plans, const DeviceOptions& device) {
  const std::int64_t allowed = allowed_memory(device);
  const auto* const first = std::find_if(
      plans.begin(), plans.end(), [&](const MemoryPlan& plan) { return plan.total() <= allowed; });
  return first != plans.end() ? *first : *(plans.end() - 1);
}

MemoryPlan choose_plan(RecomputeChoice choice, const DeviceOptions& device,
                       const std::function<MemoryPlan(engines::Recompute)>& plan_of) {
  switch (choice) {
    case RecomputeChoice::kNone: return plan_of(engines::Recompute::kNone);
    case RecomputeChoice::kCheap: return plan_of(engines::Recompute::kCheap);
    case RecomputeChoice::kLayer: return plan_of(engines::Recompute::kLayer);
    case RecomputeChoice::kAuto: break;
  }
  MemoryPlan plan;
  for (const engines::Recompute recompute : engines::kRecomputes) {
    plan = plan_of(recompute);
    if (plan.total() <= allowed_memory(device)) {
      break;
    }
  }
  return plan;
}

std::int64_t allowed_memory(const DeviceOptions& device) {
  return memory_limit(device).bytes;
}

std::string allowed_text(const DeviceOptions& device) {
  return limit_text(memory_limit(device));
}

Status check_memory(const MemoryPlan& plan, const DeviceOptions& device) {
  const MemoryLimit limit = memory_limit(device);
  if (plan.total() <= limit.bytes) {
    return {};
  }
  return invalid_argument("device.memory_bytes: " + shortage_text(plan, limit));
}

MemoryPlan choose_micro_batch(
    RecomputeChoice choice, const DeviceOptions& device, std::int64_t wanted, std::int64_t least,
    const std::function<MemoryPlan(engines::Recompute, std::int64_t train_tokens)>& plan_for) {
  const auto choose = [&](std::int64_t train_tokens) {
    return choose_plan(choice, device, [&](engines::Recompute recompute) {
      return plan_for(recompute, train_tokens);
    });
  };
  MemoryPlan plan = choose(std::max(wanted, least));
  if (wanted > least && plan.total() > allowed_memory(device)) {
    plan = choose(least);
  }
  return plan;
}

Status check_longest_row(const LongestRow& row, const DeviceOptions& device,
                         const std::function<MemoryPlan(std::int64_t)>& plan_for) {
  const MemoryLimit limit = memory_limit(device);
  const std::int64_t allowed = limit.bytes;
  const MemoryPlan plan = plan_for(row.tokens);
  if (plan.total() <= allowed) {
    return {};
  }
  if (row.location.empty() || plan_for(1).total() > allowed) {
    return check_memory(plan, device);
  }
  std::int64_t fits = 1;
  std::int64_t exceeds = row.tokens;
  while (exceeds - fits > 1) {
    const std::int64_t middle = fits + (exceeds - fits) / 2;
    (plan_for(middle).total() <= allowed ? fits : exceeds) = middle;
  }
  return invalid_argument(row.location + ": " + row.what + " has " + std::to_string(row.tokens) +
                          " tokens, and memory is enough for " + std::to_string(fits) +
                          " (data.max_prompt_tokens and data.on_long_prompt leave longer ones "
                          "out); device.memory_bytes: " +
                          shortage_text(plan, limit));
}

}  // namespace tidemill::workflows
