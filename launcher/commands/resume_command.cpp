// SPDX-License-Identifier: Apache-2.0
// `tidemill resume`: resumes a run from its last commit.
#include <CLI/App.hpp>
#include <filesystem>

#include "configs/load.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/inspect/run_report.hpp"
#include "launcher/runs/config_changes.hpp"
#include "launcher/runs/run_file.hpp"
#include "launcher/runs/run_session.hpp"

namespace tidemill::launcher {
namespace {

class ResumeCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "resume"; }
  [[nodiscard]] std::string summary() const override {
    return "Resumes a run from its last commit";
  }
  [[nodiscard]] std::string example() const override { return "tidemill resume runs/quickstart"; }

  void declare(CLI::App& app) override {
    app.add_option("RUN", run_, "The run's directory, or its name under runs/")
        ->required()
        ->type_name("");
    app.add_option("KEY=VALUE", overrides_,
                   "Keys to change, e.g. train.steps=400; keys that the commits depend on are "
                   "refused")
        ->type_name("");
    app.add_flag("--use-commit-before", use_commit_before_,
                 "If the last commit is damaged, resume from the newest intact one");
    app.add_flag("--accept-lost-records", accept_lost_records_,
                 "Resume even if lines of metrics.jsonl or samples.jsonl are lost or changed");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const auto schema, run_schema(session));
    RunContext context;
    TIDEMILL_ASSIGN_OR_RETURN(context.directory, find_run(run_));
    TIDEMILL_ASSIGN_OR_RETURN(context.held, HeldDirectory::open(context.directory));
    ResumedConfig config;
    config.file = (context.directory / "run.yaml").string();
    config.overrides = numbered_overrides(overrides_, session);
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> before,
                              configs::load_run_config(schema, config.file));
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> after,
                              configs::load_run_config(schema, config.file, config.overrides));
    config.before = before.value;
    config.after = after.value;
    context.config = after.value;
    context.config_text = configs::resolved_text(schema, context.config);
    if (!overrides_.empty()) {
      context.run_yaml = context.config_text;
    }
    context.check_config = [&schema, &config](const std::string& committed) {
      return check_config_changes(schema, config, committed);
    };
    if (use_commit_before_) {
      context.on_damage = storage::OnDamage::kUseNewestIntact;
    }
    if (accept_lost_records_) {
      context.on_lost_records = OnLostRecords::kAccept;
    }
    return execute_run(context, session);
  }

private:
  std::string run_;
  std::vector<std::string> overrides_;
  bool use_commit_before_ = false;
  bool accept_lost_records_ = false;
};

}  // namespace

std::unique_ptr<Command> make_resume_command() {
  return std::make_unique<ResumeCommand>();
}

}  // namespace tidemill::launcher
