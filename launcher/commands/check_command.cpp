// SPDX-License-Identifier: Apache-2.0
// `tidemill check`: checks whether a run's file can be used, and prints what it means.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "configs/load.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/json_form.hpp"
#include "launcher/runs/run_file.hpp"

namespace tidemill::launcher {
namespace {

class CheckCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "check"; }
  [[nodiscard]] std::string summary() const override { return "Checks a run's configuration file"; }
  [[nodiscard]] std::string example() const override {
    return "tidemill check configs/quickstart.yaml train.steps=20 --print";
  }

  void declare(CLI::App& app) override {
    file_.declare(app);
    app.add_flag("--print", print_,
                 "Print the resolved configuration, with every default, as YAML");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved, file_.load(session));
    if (session.form == OutputForm::kJson) {
      const nlohmann::ordered_json line{{"file", file_.path()},
                                        {"ok", true},
                                        {"warnings", resolved.warnings},
                                        {"config", to_json(file_.schema().print(resolved.value))}};
      session.out << line.dump() << '\n';
      return {};
    }
    print_warnings(resolved, session);
    if (print_) {
      session.out << configs::resolved_text(file_.schema(), resolved.value);
    } else {
      session.out << file_.path() << ": ok, workflow " << resolved.value.workflow.name() << '\n';
    }
    return {};
  }

private:
  RunFile file_;
  bool print_ = false;
};

}  // namespace

std::unique_ptr<Command> make_check_command() {
  return std::make_unique<CheckCommand>();
}

}  // namespace tidemill::launcher
