// SPDX-License-Identifier: Apache-2.0
#include "launcher/inspect/run_report.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <span>
#include <vector>

#include "base/files/file.hpp"
#include "base/schema/suggest.hpp"
#include "configs/yaml_tree.hpp"
#include "storage/checkpoint/run_lock.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/run_state.hpp"

namespace tidemill::launcher {
namespace {

constexpr std::uint64_t kMaxRunFileBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kTailBytes = std::uint64_t{1} << 20U;

std::optional<std::int64_t> integer_of(const ConfigNode* node) {
  std::int64_t value = 0;
  if (node == nullptr || node->kind != ConfigNode::Kind::kPlain) {
    return std::nullopt;
  }
  const char* end = node->text.data() + node->text.size();
  const auto [rest, error] = std::from_chars(node->text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

const ConfigNode* find(const ConfigNode& node, std::string_view key) {
  const ConfigEntry* entry = node.find(key);
  return entry == nullptr ? nullptr : &entry->value;
}

const ConfigNode* find(const ConfigNode& node, std::string_view section, std::string_view key) {
  const ConfigNode* inside = find(node, section);
  return inside == nullptr ? nullptr : find(*inside, key);
}

// Reads the file without the schema, so that a run with keys unknown to this program can be shown.
Status read_run_file(RunReport& report) {
  const std::filesystem::path path = report.directory / "run.yaml";
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxRunFileBytes));
  TIDEMILL_ASSIGN_OR_RETURN(const ConfigNode root, configs::parse_yaml(text, path.string()));
  const ConfigNode* workflow = find(root, "workflow");
  if (workflow == nullptr || workflow->text.empty()) {
    return corrupt_data(path.string() + ": workflow: missing");
  }
  report.workflow = schema::clipped(workflow->text);
  report.steps = integer_of(find(root, "train", "steps"));
  const ConfigNode* model = find(root, "model", "path");
  report.model = model == nullptr ? "" : model->text;
  return {};
}

// Reads the end of a file that may be growing, from the start of a line on.
Result<std::string> read_tail(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  const std::uint64_t size = std::min(file.size_bytes(), kTailBytes);
  std::string tail(static_cast<std::size_t>(size), '\0');
  TIDEMILL_RETURN_IF_ERROR(
      file.read_at(file.size_bytes() - size, std::as_writable_bytes(std::span(tail))));
  if (size < file.size_bytes()) {
    tail.erase(0, tail.find('\n') + 1);
  }
  return tail;
}

Status read_metrics(RunReport& report) {
  const std::filesystem::path path = report.directory / storage::kMetricsFile;
  auto tail = read_tail(path);
  if (tail.status().code() == Errc::kNotFound) {
    return {};  // no step recorded yet
  }
  TIDEMILL_RETURN_IF_ERROR(tail.status());
  std::string_view rest = tail.value();
  rest = rest.substr(0, rest.rfind('\n') + 1);  // leaves out a line that is still being written
  while (!rest.empty() && (report.train.empty() || report.eval.empty())) {
    rest.remove_suffix(1);
    const std::size_t begin = rest.rfind('\n') + 1;
    const auto line = storage::parse_metrics_line(rest.substr(begin));
    if (!line.ok()) {
      return corrupt_data(path.string() + ": contains an invalid line");
    }
    const bool evaluation = line.value().kind == "eval";
    if (line.value().kind == "train") {
      report.step = std::max(report.step, static_cast<std::int64_t>(line.value().step));
    }
    auto& metrics = evaluation ? report.eval : report.train;
    if (metrics.empty()) {
      metrics = line.value().metrics;
    }
    rest = rest.substr(0, begin);
  }
  return {};
}

std::time_t written_time(const std::filesystem::path& directory) {
  for (const char* name : {storage::kMetricsFile, "run.yaml"}) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(directory / name, error);
    if (!error) {
      return std::chrono::system_clock::to_time_t(
          std::chrono::time_point_cast<std::chrono::system_clock::duration>(
              std::chrono::file_clock::to_sys(time)));
    }
  }
  return 0;
}

Status read_state(RunReport& report) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<storage::RunStateNote> note,
                            storage::read_run_state(report.directory));
  if (note && note->steps > 0) {
    report.steps = static_cast<std::int64_t>(note->steps);
  }
  TIDEMILL_ASSIGN_OR_RETURN(const bool held, storage::is_run_locked(report.directory));
  if (held) {
    report.state = "running";
    return {};
  }
  if (note && note->state != "running") {
    report.state = note->state;
    report.reason = note->reason;
  } else if (note) {
    report.state = "failed";
    report.reason = "its process was killed, or could not write why it ended";
  } else {  // the run predates state.json
    const bool done = report.steps && report.step >= *report.steps;
    report.state = done ? "finished" : "stopped";
  }
  return {};
}

}  // namespace

bool is_run(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::exists(directory / "run.yaml", error) ||
         std::filesystem::exists(directory / storage::kMetricsFile, error);
}

RunReport read_run_report(const std::filesystem::path& directory) {
  RunReport report;
  report.directory = directory;
  std::error_code ignored;
  report.name = std::filesystem::canonical(directory, ignored).filename().string();
  report.written = written_time(directory);
  Status status = read_run_file(report);
  for (Status (*read)(RunReport&) : {read_metrics, read_state}) {
    if (status.ok()) {
      status = read(report);
    }
  }
  if (!status.ok()) {
    report.state = "damaged";
    report.reason = status.message();
  }
  return report;
}

Result<std::filesystem::path> find_run(const std::string& run) {
  if (run.empty()) {
    return invalid_argument("RUN: is empty; tidemill runs lists all runs");
  }
  std::error_code ignored;
  const std::filesystem::path named = std::filesystem::path("runs") / run;
  for (const std::filesystem::path& path : {std::filesystem::path(run), named}) {
    if (std::filesystem::exists(path / "run.yaml", ignored)) {
      return path;
    }
  }
  if (std::filesystem::is_directory(run, ignored)) {
    return Status(Errc::kNotFound, (std::filesystem::path(run) / "run.yaml").string() +
                                       ": no such file; every run directory has one");
  }
  return Status(Errc::kNotFound,
                schema::clipped(run) + ": no such run; tidemill runs lists all runs");
}

}  // namespace tidemill::launcher
