// SPDX-License-Identifier: Apache-2.0
// `tidemill resume`: resumes a run from its last commit.
#include <CLI/App.hpp>
#include <filesystem>

#include "configs/load.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"
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
    app.add_option("RUN", directory_, "The run's directory")->required()->type_name("");
    app.add_flag("--use-commit-before", use_commit_before_,
                 "If the last commit is damaged, resume from the newest intact one");
    app.add_flag("--accept-lost-records", accept_lost_records_,
                 "Resume even if lines of metrics.jsonl or samples.jsonl are lost or changed");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const auto schema, run_schema(session));
    const std::filesystem::path directory = directory_;
    TIDEMILL_RETURN_IF_ERROR(check_exists(directory));
    TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> resolved,
                              configs::load_run_config(schema, (directory / "run.yaml").string()));
    RunContext context{directory, resolved.value};
    if (use_commit_before_) {
      context.on_damage = storage::OnDamage::kUseNewestIntact;
    }
    if (accept_lost_records_) {
      context.on_lost_records = OnLostRecords::kAccept;
    }
    return execute_run(context, session);
  }

private:
  // Users may give the name of a run instead of its path. Suggests the path then.
  [[nodiscard]] static Status check_exists(const std::filesystem::path& directory) {
    std::error_code ignored;
    const std::filesystem::path meant = "runs" / directory;
    if (!std::filesystem::exists(directory, ignored) &&
        std::filesystem::exists(meant / "run.yaml", ignored)) {
      return Status(Errc::kNotFound,
                    directory.string() + ": no such run; did you mean " + meant.string() + '?');
    }
    return {};
  }

  std::string directory_;
  bool use_commit_before_ = false;
  bool accept_lost_records_ = false;
};

}  // namespace

std::unique_ptr<Command> make_resume_command() {
  return std::make_unique<ResumeCommand>();
}

}  // namespace tidemill::launcher
