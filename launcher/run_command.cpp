// SPDX-License-Identifier: Apache-2.0
// `tidemill run`: carries a run out.
#include <CLI/App.hpp>
#include <ostream>

#include "configs/load.hpp"
#include "launcher/commands.hpp"
#include "launcher/run_file.hpp"
#include "launcher/run_session.hpp"

namespace tidemill::launcher {
namespace {

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
    app.add_flag("--dry-run", dry_run_, "Print the resolved configuration and do nothing");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved, file_.load(session));
    for (const std::string& warning : resolved.warnings) {
      session.err << "warning: " << warning << '\n';
    }
    if (dry_run_) {
      session.out << configs::resolved_text(file_.schema(), resolved.value);
      return {};
    }
    RunPlace place;
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
