// SPDX-License-Identifier: Apache-2.0
// `tidemill runs`: lists all runs with their state and latest metrics.
#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <ostream>
#include <vector>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "base/schema/suggest.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/text_table.hpp"
#include "launcher/inspect/run_report.hpp"
#include "launcher/terminal.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kNone = "-";

std::string time_text(std::time_t time, const char* format) {
  if (time == 0) {
    return kNone;
  }
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &parts)};
}

std::string metric_text(const std::map<std::string, double>& metrics, const char* name) {
  const auto found = metrics.find(name);
  if (found == metrics.end()) {
    return kNone;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", found->second);
  return text.data();
}

using Row = TableRow;

Row row_of(const RunReport& report) {
  const std::string steps = report.steps ? std::to_string(*report.steps) : "?";
  return {schema::clipped(report.name),
          report.workflow.empty() ? kNone : report.workflow,
          report.state,
          report.state == "damaged" ? kNone : std::to_string(report.step) + '/' + steps,
          metric_text(report.train, "reward_mean"),
          metric_text(report.eval, "eval_mean_at_k"),
          metric_text(report.train, "loss"),
          metric_text(report.eval, "eval_loss"),
          time_text(report.written, "%Y-%m-%d %H:%M:%S"),
          shown_text(report.reason, Letters::kUtf8)};
}

Json::Object metrics_json(const std::map<std::string, double>& metrics) {
  Json::Object out;
  for (const auto& [name, value] : metrics) {
    out.push_back({name, value});
  }
  return out;
}

Json report_json(const RunReport& report) {
  return Json::Object{{"run", report.directory.string()},
                      {"workflow", report.workflow},
                      {"state", report.state},
                      {"reason", report.reason},
                      {"step", report.step},
                      {"steps", report.steps ? Json(*report.steps) : Json()},
                      {"train", metrics_json(report.train)},
                      {"eval", metrics_json(report.eval)},
                      {"written", time_text(report.written, "%Y-%m-%dT%H:%M:%S%z")}};
}

class RunsCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "runs"; }
  [[nodiscard]] std::string summary() const override {
    return "Lists all runs with their state and latest metrics";
  }
  [[nodiscard]] std::string example() const override { return "tidemill runs"; }

  void declare(CLI::App& app) override {
    app.add_option("--dir", folder_, "Directory that contains the runs")
        ->type_name("DIR")
        ->capture_default_str();
  }

  [[nodiscard]] Status run(Session& session) override {
    const auto names = list_directory(folder_);
    std::error_code error;
    const auto type = std::filesystem::status(folder_, error).type();
    using std::filesystem::file_type;
    const bool known = type != file_type::none && type != file_type::unknown;
    if (!names.ok() && known && type != file_type::directory) {
      return Status(Errc::kNotFound, folder_ +
                                         ": no such directory; runs are stored in runs/ of "
                                         "the directory that tidemill is started in");
    }
    if (!names.ok()) {
      return Status(Errc::kUnavailable, names.status().message());
    }
    std::vector<RunReport> reports;
    for (const std::string& name : names.value()) {
      const std::filesystem::path entry = std::filesystem::path(folder_) / name;
      if (is_run(entry)) {
        reports.push_back(read_run_report(entry));
      }
    }
    // The newest run comes last, just above the shell's prompt.
    std::sort(reports.begin(), reports.end(), [](const RunReport& a, const RunReport& b) {
      return a.written != b.written ? a.written < b.written : a.name < b.name;
    });
    if (session.form == OutputForm::kJson) {
      for (const RunReport& report : reports) {
        session.out << report_json(report).to_line();
      }
      return {};
    }
    std::vector<Row> rows{{"run", "workflow", "state", "step", "reward", "eval reward", "loss",
                           "eval loss", "written", ""}};
    std::transform(reports.begin(), reports.end(), std::back_inserter(rows), row_of);
    print_table(rows, session.out);
    return {};
  }

private:
  std::string folder_ = "runs";
};

}  // namespace

std::unique_ptr<Command> make_runs_command() {
  return std::make_unique<RunsCommand>();
}

}  // namespace tidemill::launcher
