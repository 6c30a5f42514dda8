// SPDX-License-Identifier: Apache-2.0
// `tidemill top`: lists the processes of a run in progress.
#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/json/json.hpp"
#include "base/text/mebibytes.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/text_table.hpp"
#include "launcher/inspect/run_report.hpp"
#include "workflows/processes/run_control.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kNone = "-";
// Between the two looks at a run from which rates are computed.
constexpr auto kInterval = std::chrono::seconds(1);

// One look at the processes of a run.
struct Look {
  TimePoint at;
  Json answer;
};

Result<Look> look(const std::filesystem::path& run, const Clock& clock) {
  TIDEMILL_ASSIGN_OR_RETURN(Json answer,
                            workflows::ask_run(run, Json::Object{{"ask", "processes"}}));
  return Look{clock.now(), std::move(answer)};
}

const Json::Array& processes_of(const Look& of) {
  static const Json::Array empty;
  const Json* processes = of.answer.find("processes");
  const Json::Array* list = processes != nullptr ? processes->if_array() : nullptr;
  return list != nullptr ? *list : empty;
}

std::string text_of(const Json& process, const char* name) {
  const Json* value = process.find(name);
  if (value == nullptr || value->is_null()) {
    return kNone;
  }
  if (const std::int64_t* number = value->if_integer()) {
    return std::to_string(*number);
  }
  const std::string* text = value->if_string();
  return text == nullptr || text->empty() ? kNone : *text;
}

double number_of(const Json* process, const char* name) {
  const Json* value = process != nullptr ? process->find(name) : nullptr;
  return value != nullptr ? value->number().value_or(0.0) : 0.0;
}

std::string fixed_text(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// The process of the same name and id at an earlier look, or null.
const Json* same_process(const Look& before, const Json& process) {
  for (const Json& other : processes_of(before)) {
    if (text_of(other, "name") == text_of(process, "name") &&
        text_of(other, "pid") == text_of(process, "pid")) {
      return &other;
    }
  }
  return nullptr;
}

// How much both directions of a process's link carried per second between two looks.
double rate(const Json* before, const Json& process, const char* sent, const char* received,
            double seconds) {
  const auto total = [&](const Json* of) { return number_of(of, sent) + number_of(of, received); };
  return before == nullptr ? 0.0 : (total(&process) - total(before)) / seconds;
}

TableRow row_of(const Look& before, const Json& process, double seconds) {
  const bool is_owner = text_of(process, "role") == "run";
  const Json* earlier = same_process(before, process);
  const double waited = number_of(&process, "waiting_seconds");
  const std::string waiting = text_of(process, "waiting_for");
  const Json* memory = process.find("memory_bytes");
  const std::int64_t* bytes = memory != nullptr ? memory->if_integer() : nullptr;
  TableRow row{text_of(process, "name"), text_of(process, "pid"), text_of(process, "cores"),
               bytes != nullptr ? mebibytes(*bytes) : kNone};
  if (is_owner) {
    row.insert(row.end(), 7, kNone);
    return row;
  }
  row.push_back(text_of(process, "transport"));
  row.push_back(text_of(process, "connection"));
  row.push_back(
      fixed_text(rate(earlier, process, "sent_messages", "received_messages", seconds), 0));
  row.push_back(
      fixed_text(rate(earlier, process, "sent_bytes", "received_bytes", seconds) / 1024.0, 1));
  row.push_back(fixed_text(number_of(&process, "credit_used_bytes") / 1024.0, 1));
  row.push_back(fixed_text(number_of(&process, "queued_bytes") / 1024.0, 1));
  row.push_back(waiting == kNone
                    ? kNone
                    : text_of(process, "waiting_workers") + " of " + text_of(process, "workers") +
                          " for " + fixed_text(waited, 1) + " s: " + waiting);
  return row;
}

// Finds the runs in progress that answer.
std::vector<std::filesystem::path> running() {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("runs", ignored)) {
    if (workflows::may_answer(entry.path())) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

class TopCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "top"; }
  [[nodiscard]] std::string summary() const override {
    return "Lists the processes of a run in progress, and what each waits for";
  }
  [[nodiscard]] std::string example() const override { return "tidemill top quickstart"; }

  void declare(CLI::App& app) override {
    app.add_option("RUN", run_,
                   "The run's directory, or its name under runs/; without it, every "
                   "run in progress that has several processes")
        ->type_name("");
  }

  [[nodiscard]] Status run(Session& session) override {
    std::vector<std::filesystem::path> runs;
    if (run_.empty()) {
      runs = running();
      if (runs.empty()) {
        return {Errc::kUnavailable, "runs: no run with several processes is in progress here"};
      }
    } else {
      TIDEMILL_ASSIGN_OR_RETURN(runs.emplace_back(), find_run(run_));
    }
    for (const std::filesystem::path& run : runs) {
      Status shown = show(run, session);
      if (!shown.ok() && (!run_.empty() || runs.size() == 1)) {
        return shown;
      }
    }
    return {};
  }

private:
  static Status show(const std::filesystem::path& run, Session& session) {
    TIDEMILL_ASSIGN_OR_RETURN(const Look before, look(run, session.clock));
    if (session.form == OutputForm::kJson) {
      session.out << before.answer.to_line();
      return {};
    }
    std::this_thread::sleep_for(kInterval);  // rates need a while, and nothing wakes it
    TIDEMILL_ASSIGN_OR_RETURN(const Look after, look(run, session.clock));
    const double seconds = std::chrono::duration<double>(after.at - before.at).count();
    std::vector<TableRow> rows{{run.filename().string(), "pid", "cores", "MiB", "transport", "link",
                                "messages/s", "KiB/s", "credit KiB", "queue KiB", "waiting for"}};
    for (const Json& process : processes_of(after)) {
      rows.push_back(row_of(before, process, seconds));
    }
    print_table(rows, session.out);
    return {};
  }

  std::string run_;
};

}  // namespace

std::unique_ptr<Command> make_top_command() {
  return std::make_unique<TopCommand>();
}

}  // namespace tidemill::launcher
