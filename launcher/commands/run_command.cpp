// SPDX-License-Identifier: Apache-2.0
// `tidemill run`: starts a run.
#include <CLI/App.hpp>
#include <ostream>

#include "configs/load.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/dry_run.hpp"
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
    if (!dry_run_ || session.form != OutputForm::kJson) {
      print_warnings(resolved, session);
    }
    if (dry_run_) {
      TIDEMILL_ASSIGN_OR_RETURN(const workflows::RunPlans plans, plan_memory(resolved.value));
      print_dry_run(file_.schema(), resolved,
                    {memory_line("memory, expected peak", "expected_memory_bytes", plans.expected),
                     memory_line("memory, at most", "memory_bytes", plans.maximum)},
                    session);
      return {};
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
  RunFile file_;
  bool dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> make_run_command() {
  return std::make_unique<RunCommand>();
}

}  // namespace tidemill::launcher
