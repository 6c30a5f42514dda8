// SPDX-License-Identifier: Apache-2.0
// `tidemill worker`: a process that a run has started. People do not call it, so it is hidden.
#include <CLI/App.hpp>
#include <filesystem>
#include <span>

#include "base/digest.hpp"
#include "configs/load.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/runs/run_directory.hpp"
#include "workflows/processes/core_plan.hpp"
#include "workflows/processes/worker_address.hpp"
#include "workflows/rl/reward_process.hpp"
#include "workflows/rl/rollout_process.hpp"

namespace tidemill::launcher {
namespace {

class WorkerCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "worker"; }
  [[nodiscard]] std::string summary() const override {
    return "Works for a run that has started this process";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill worker runs/quickstart --role reward ...";
  }
  [[nodiscard]] bool hidden() const override { return true; }

  void declare(CLI::App& app) override {
    app.add_option("RUN", run_, "The run's directory")->required()->type_name("");
    app.add_option("--role", role_, "What it does for the run")->required()->type_name("ROLE");
    app.add_option("--transport", address_.transport, "How it reaches the run")
        ->required()
        ->type_name("NAME");
    app.add_option("--socket", address_.socket, "Where it reaches the run")
        ->required()
        ->type_name("PATH");
    app.add_option("--run", address_.run, "The number of the run")->required()->type_name("N");
    app.add_option("--incarnation", address_.incarnation, "The incarnation of the run")
        ->required()
        ->type_name("N");
    app.add_option("--process", address_.process, "The number of this process in the run")
        ->required()
        ->type_name("N");
    app.add_option("--configuration", configuration_, "The digest of the run's configuration")
        ->type_name("DIGEST");
    app.add_option("--cores", cores_, "The cores on which it computes")->type_name("LIST");
    app.add_option("--owner", address_.owner, "The process id of the process of the run")
        ->required()
        ->type_name("PID");
  }

  [[nodiscard]] Status run(Session& session) override {
    if (!workflows::begin_worker_process(address_.owner)) {
      return {Errc::kUnavailable,
              "--owner: process " + std::to_string(address_.owner) + " has not started this one"};
    }
    if (!cores_.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(const workflows::CoreList cores, workflows::parse_cores(cores_));
      TIDEMILL_RETURN_IF_ERROR(workflows::use_cores(cores));
    }
    const std::filesystem::path directory = run_;
    TIDEMILL_ASSIGN_OR_RETURN(const auto schema, run_schema(session));
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved,
                              configs::load_run_config(schema, (directory / "run.yaml").string()));
    // The run and its processes must agree, also about those that start later.
    const std::string text = configs::resolved_text(schema, resolved.value);
    if (!configuration_.empty() && digest_bytes(std::as_bytes(std::span(text))) != configuration_) {
      return invalid_argument((directory / "run.yaml").string() +
                              ": is not the configuration with which the run started");
    }
    const auto* rl = resolved.value.workflow.get<workflows::RlOptions>();
    if (rl == nullptr || (role_ != "reward" && role_ != "rollout")) {
      return invalid_argument("--role: this run has no role " + role_);
    }
    TIDEMILL_ASSIGN_OR_RETURN(const std::string started, read_started(directory));
    if (role_ == "rollout") {
      return workflows::run_rollout_process(*rl, {started, address_});
    }
    return workflows::run_reward_process(*rl,
                                         {directory, started, session.additions.run, address_});
  }

private:
  std::string run_;
  std::string role_;
  std::string configuration_;
  std::string cores_;
  workflows::WorkerProcessAddress address_;
};

}  // namespace

std::unique_ptr<Command> make_worker_command() {
  return std::make_unique<WorkerCommand>();
}

}  // namespace tidemill::launcher
