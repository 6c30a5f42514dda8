// SPDX-License-Identifier: Apache-2.0
// `tidemill run`: starts a run.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "configs/load.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/json_form.hpp"
#include "launcher/runs/run_directory.hpp"
#include "launcher/runs/run_file.hpp"
#include "launcher/runs/run_session.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::launcher {
namespace {

// Plans the memory of a run. Fails if the run itself would be refused for its memory or its data.
template <class Options>
Result<workflows::RunPlans> fitting_memory(const Options& options) {
  TIDEMILL_ASSIGN_OR_RETURN(
      const auto model,
      workflows::open_trained_model(options.model, options.train.common, options.run.seed));
  return workflows::plan_memory(options, model, {local_time(), [](const std::string&) {}});
}

Result<workflows::RunPlans> plan_memory(const configs::RunConfig& config) {
  if (const auto* rl = config.workflow.get<workflows::RlOptions>()) {
    return fitting_memory(*rl);
  }
  if (const auto* sft = config.workflow.get<workflows::SftOptions>()) {
    return fitting_memory(*sft);
  }
  return Status(Errc::kUnimplemented, "this program cannot run the workflow");
}

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
          {"best", plan.best_bytes}};
}

class RunCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "run"; }
  [[nodiscard]] std::string summary() const override {
    return "Starts a run in a new directory under runs/";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill run configs/quickstart.yaml train.steps=20";
  }

  void declare(CLI::App& app) override {
    file_.declare(app);
    app.add_flag(
        "--dry-run", dry_run_,
        "Print the resolved configuration and the memory that the run needs, but do not start it");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved, file_.load(session));
    if (resolved.value.workflow.get<workflows::ServeOptions>() != nullptr) {
      return invalid_argument(file_.path() +
                              ": workflow: serve is not a run; to start the server: "
                              "tidemill serve " +
                              file_.path());
    }
    if (dry_run_ && session.form == OutputForm::kJson) {
      return print_object(resolved, session);
    }
    for (const std::string& warning : resolved.warnings) {
      session.err << "warning: " << warning << '\n';
    }
    if (dry_run_) {
      return print_file(resolved.value, session);
    }
    RunContext context;
    context.fresh = true;
    context.config = resolved.value;
    context.config_text = configs::resolved_text(file_.schema(), resolved.value);
    TIDEMILL_ASSIGN_OR_RETURN(const NewRunDirectory made,
                              make_run_directory(file_.schema(), resolved.value, file_.path()));
    context.directory = made.path;
    context.held = made.held;
    if (made.taken_over) {
      session.log.info(made.path.string() +
                       ": takes the place of a run that ended before it began and left no commit "
                       "and no records");
    }
    return execute_run(context, session);
  }

private:
  [[nodiscard]] Status print_object(const Resolved<configs::RunConfig>& resolved,
                                    Session& session) const {
    TIDEMILL_ASSIGN_OR_RETURN(const workflows::RunPlans plans, plan_memory(resolved.value));
    nlohmann::ordered_json object{{"config", to_json(file_.schema().print(resolved.value))},
                                  {"expected_memory_bytes", memory_json(plans.expected)},
                                  {"memory_bytes", memory_json(plans.maximum)}};
    if (!resolved.warnings.empty()) {
      object["warnings"] = resolved.warnings;
    }
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    session.out << object.dump(-1, ' ', false, replace) << '\n';
    return {};
  }

  // Prints the memory as comments, so that the output is a valid configuration file.
  [[nodiscard]] Status print_file(const configs::RunConfig& config, Session& session) const {
    TIDEMILL_ASSIGN_OR_RETURN(const workflows::RunPlans plans, plan_memory(config));
    session.out << configs::resolved_text(file_.schema(), config)
                << "# memory, expected peak: " << workflows::to_text(plans.expected) << '\n'
                << "# memory, at most: " << workflows::to_text(plans.maximum) << '\n';
    return {};
  }

  RunFile file_;
  bool dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> make_run_command() {
  return std::make_unique<RunCommand>();
}

}  // namespace tidemill::launcher
