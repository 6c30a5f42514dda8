// SPDX-License-Identifier: Apache-2.0
// `tidemill scale`: changes how many processes of a role a run has while it is in progress.
#include <CLI/App.hpp>
#include <charconv>
#include <filesystem>
#include <ostream>
#include <string>

#include "base/json/json.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/inspect/run_report.hpp"
#include "workflows/processes/run_control.hpp"

namespace tidemill::launcher {
namespace {

// "rollout=3".
struct WantedProcesses {
  std::string role;
  std::int64_t processes = 0;
};

Result<WantedProcesses> parse(const std::string& text) {
  const std::size_t sign = text.find('=');
  WantedProcesses wanted{text.substr(0, sign)};
  const char* const end = text.data() + text.size();
  if (sign != std::string::npos && sign > 0) {
    const auto [last, error] = std::from_chars(text.data() + sign + 1, end, wanted.processes);
    if (error == std::errc() && last == end && wanted.processes >= 0) {
      return wanted;
    }
  }
  return invalid_argument(text + ": must be ROLE=PROCESSES, such as rollout=3");
}

class ScaleCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "scale"; }
  [[nodiscard]] std::string summary() const override {
    return "Adds processes to a run in progress, or drains some";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill scale quickstart rollout=3";
  }

  void declare(CLI::App& app) override {
    app.add_option("RUN", run_, "The run's directory, or its name under runs/")
        ->required()
        ->type_name("");
    app.add_option("ROLE=N", wanted_, "Processes of a role: rollout or reward")
        ->required()
        ->type_name("");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const WantedProcesses wanted, parse(wanted_));
    TIDEMILL_ASSIGN_OR_RETURN(const std::filesystem::path directory, find_run(run_));
    TIDEMILL_ASSIGN_OR_RETURN(
        const Json answer,
        workflows::ask_run(directory, Json::Object{{"ask", "scale"},
                                                   {"role", wanted.role},
                                                   {"processes", wanted.processes}}));
    if (session.form == OutputForm::kJson) {
      session.out << answer.to_line();
      return {};
    }
    const Json* before = answer.find("before");
    const std::int64_t* count = before != nullptr ? before->if_integer() : nullptr;
    session.out << wanted.role << ": " << (count != nullptr ? std::to_string(*count) : "?")
                << " -> " << wanted.processes << " processes\n";
    return {};
  }

private:
  std::string run_;
  std::string wanted_;
};

}  // namespace

std::unique_ptr<Command> make_scale_command() {
  return std::make_unique<ScaleCommand>();
}

}  // namespace tidemill::launcher
