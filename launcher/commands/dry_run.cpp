// SPDX-License-Identifier: Apache-2.0
#include "launcher/commands/dry_run.hpp"

#include <ostream>
#include <utility>

#include "configs/load.hpp"
#include "launcher/commands/json_form.hpp"

namespace tidemill::launcher {
namespace {

nlohmann::ordered_json memory_json(const workflows::MemoryPlan& plan) {
  return {{"total", plan.total()},
          {"program", plan.program_bytes},
          {"weights", plan.engine.weights_bytes},
          {"kv", plan.engine.kv_bytes},
          {"activations", plan.engine.activation_bytes},
          {"recompute", engines::recompute_name(plan.budgets.recompute)},
          {"window_tokens", plan.budgets.window_tokens},
          {"gradients", plan.engine.gradient_bytes},
          {"optimizer", plan.engine.optimizer_bytes},
          {"commits", plan.engine.capture_bytes},
          {"generated", plan.engine.generated_bytes},
          {"stream", plan.stream_bytes},
          {"best", plan.best_bytes},
          {"constraints", plan.constraint_bytes}};
}

}  // namespace

MemoryLine memory_line(std::string title, std::string member, const workflows::MemoryPlan& plan) {
  return {std::move(title), workflows::to_text(plan), std::move(member), memory_json(plan)};
}

void print_dry_run(const Schema<configs::RunConfig>& schema,
                   const Resolved<configs::RunConfig>& resolved,
                   const std::vector<MemoryLine>& lines, Session& session) {
  if (session.form != OutputForm::kJson) {
    session.out << configs::resolved_text(schema, resolved.value);
    for (const MemoryLine& line : lines) {
      session.out << "# " << line.title << ": " << line.text << '\n';
    }
    return;
  }
  nlohmann::ordered_json object{{"config", to_json(schema.print(resolved.value))}};
  for (const MemoryLine& line : lines) {
    object[line.member] = line.value;
  }
  if (!resolved.warnings.empty()) {
    object["warnings"] = resolved.warnings;
  }
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  session.out << object.dump(-1, ' ', false, replace) << '\n';
}

}  // namespace tidemill::launcher
