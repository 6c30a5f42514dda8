// SPDX-License-Identifier: Apache-2.0
// `tidemill run`: carries a run out.
#include <CLI/App.hpp>
#include <ostream>

#include "configs/load.hpp"
#include "launcher/commands.hpp"
#include "launcher/run_directory.hpp"
#include "launcher/run_file.hpp"
#include "launcher/run_session.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::launcher {
namespace {

Result<workflows::MemoryPlan> plan_memory(const configs::RunConfig& config) {
  if (const auto* rl = config.workflow.get<workflows::RlOptions>()) {
    TIDEMILL_ASSIGN_OR_RETURN(
        const auto model, workflows::open_trained_model(rl->model, rl->train.common, rl->run.seed));
    return workflows::plan_memory(*rl, model);
  }
  if (const auto* sft = config.workflow.get<workflows::SftOptions>()) {
    TIDEMILL_ASSIGN_OR_RETURN(const auto model, workflows::open_trained_model(
                                                    sft->model, sft->train.common, sft->run.seed));
    return workflows::plan_memory(*sft, model);
  }
  return Status(Errc::kUnimplemented, "this program cannot run the workflow");
}

// A comment, so that what is printed is still a run's file.
Status print_memory(const configs::RunConfig& config, Session& session) {
  TIDEMILL_ASSIGN_OR_RETURN(const workflows::MemoryPlan plan, plan_memory(config));
  session.out << "# memory, at most: " << workflows::to_text(plan) << '\n';
  return {};
}

class RunCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "run"; }
  [[nodiscard]] std::string summary() const override {
    return "Carries a run out, in a new directory under runs/";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill run configs/quickstart.yaml train.steps=20";
  }

  void declare(CLI::App& app) override {
    file_.declare(app);
    app.add_flag("--dry-run", dry_run_,
                 "Print the resolved configuration and what memory it takes, and do nothing");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved, file_.load(session));
    for (const std::string& warning : resolved.warnings) {
      session.err << "warning: " << warning << '\n';
    }
    if (dry_run_) {
      session.out << configs::resolved_text(file_.schema(), resolved.value);
      return print_memory(resolved.value, session);
    }
    RunPlace place;
    place.fresh = true;
    place.config = resolved.value;
    TIDEMILL_ASSIGN_OR_RETURN(place.directory,
                              make_run_directory(file_.schema(), resolved.value, file_.path()));
    return carry_out(place, session);
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
