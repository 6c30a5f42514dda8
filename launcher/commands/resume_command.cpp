// SPDX-License-Identifier: Apache-2.0
// `tidemill resume`: resumes a run from its last commit.
#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "configs/load.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/inspect/run_report.hpp"
#include "launcher/runs/run_file.hpp"
#include "launcher/runs/run_session.hpp"

namespace tidemill::launcher {
namespace {

// The keys that may change when a run is resumed. They say how long the run is, when it evaluates
// and commits, what it records, and what it may use of the machine. The steps that a commit holds
// do not depend on them, with one exception: see `change_problem`.
constexpr std::array<std::string_view, 8> kChangeableKeys = {
    "train.steps",          "data.epochs",    "eval.every_steps",    "checkpoint.every_steps",
    "record.samples_bytes", "device.threads", "device.memory_bytes", "train.micro_batch_tokens"};

using Paths = std::vector<std::string>;

// Appends the paths of the keys whose values differ.
void add_differences(const ConfigNode& before, const ConfigNode& after, const std::string& path,
                     Paths& paths) {
  if (before.kind != ConfigNode::Kind::kMap || after.kind != ConfigNode::Kind::kMap) {
    if (to_flow_text(before) != to_flow_text(after)) {
      paths.push_back(path);
    }
    return;
  }
  const std::string prefix = path.empty() ? "" : path + '.';
  for (const ConfigEntry& entry : after.entries) {
    const ConfigEntry* same = before.find(entry.key);
    if (same == nullptr) {
      paths.push_back(prefix + entry.key);
    } else {
      add_differences(same->value, entry.value, prefix + entry.key, paths);
    }
  }
  for (const ConfigEntry& entry : before.entries) {
    if (after.find(entry.key) == nullptr) {
      paths.push_back(prefix + entry.key);
    }
  }
}

// Returns the location of the last override that sets the key at `path`, or a key around it.
std::string location_of(const std::string& path, const std::vector<configs::Override>& overrides) {
  for (auto given = overrides.rbegin(); given != overrides.rend(); ++given) {
    const std::string key = given->text.substr(0, given->text.find('='));
    if (path == key || path.starts_with(key + '.')) {
      return given->location + ": ";
    }
  }
  return "";
}

// Says why the key at `path` cannot change in a resumed run with the configuration `after`, or
// returns "".
std::string change_problem(const std::string& path, const ConfigNode& after) {
  if (std::find(kChangeableKeys.begin(), kChangeableKeys.end(), path) == kChangeableKeys.end()) {
    std::string keys;
    for (const std::string_view key : kChangeableKeys) {
      keys += (keys.empty() ? "" : ", ") + std::string(key);
    }
    return "cannot change in a resumed run, because its commits depend on it; these keys can: " +
           keys;
  }
  const ConfigEntry* train = after.find("train");
  const ConfigEntry* schedule = train == nullptr ? nullptr : train->value.find("schedule");
  const bool length = path == "train.steps" || path == "data.epochs";
  if (length && schedule != nullptr && schedule->value.text != "constant") {
    return "cannot change in a resumed run with train.schedule: " + schedule->value.text +
           ", because the learning rates of all steps depend on it";
  }
  return "";
}

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
    TIDEMILL_ASSIGN_OR_RETURN(const std::filesystem::path directory, find_run(run_));
    const std::string file = (directory / "run.yaml").string();
    TIDEMILL_ASSIGN_OR_RETURN(Resolved<configs::RunConfig> resolved,
                              configs::load_run_config(schema, file));
    RunContext context;
    context.directory = directory;
    context.config = resolved.value;
    if (!overrides_.empty()) {
      const auto overrides = numbered_overrides(overrides_, session);
      TIDEMILL_ASSIGN_OR_RETURN(Resolved<configs::RunConfig> changed,
                                configs::load_run_config(schema, file, overrides));
      const ConfigNode after = schema.print(changed.value);
      Paths paths;
      add_differences(schema.print(resolved.value), after, "", paths);
      for (const std::string& path : paths) {
        if (const std::string problem = change_problem(path, after); !problem.empty()) {
          return invalid_argument(location_of(path, overrides).append(path) + ": " + problem);
        }
      }
      context.config = std::move(changed.value);
      context.run_yaml = configs::resolved_text(schema, context.config);
    }
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
