// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/seed_ledger.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <set>
#include <string_view>
#include <unistd.h>

#include "base/files/file.hpp"
#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::test {
namespace {

constexpr std::uint64_t kMaxLedgerBytes = std::uint64_t{1} << 28U;

Json to_json(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

std::string line_of(const SeedRange& range) {
  Json::Object counts;
  for (const auto& [name, count] : range.counts) {
    counts.push_back({name, to_json(count)});
  }
  Json::Array failures;
  for (const auto& [seed, message] : range.failures) {
    failures.push_back(Json::Object{{"seed", to_json(seed)}, {"message", message}});
  }
  return Json(Json::Object{{"program", range.program},
                           {"first", to_json(range.first)},
                           {"end", to_json(range.end)},
                           {"seconds", range.seconds},
                           {"counts", Json(std::move(counts))},
                           {"failures", Json(std::move(failures))}})
      .to_line();
}

Result<SeedRange> read_line(std::string_view line, const std::string& where) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, parse_json(line));
  SeedRange range;
  JsonFields fields(json, where);
  range.program = fields.string("program").value_or("");
  range.first = static_cast<std::uint64_t>(fields.required_integer("first", {0}));
  range.end = static_cast<std::uint64_t>(fields.required_integer("end", {0}));
  range.seconds = fields.required_real("seconds", {});
  TIDEMILL_RETURN_IF_ERROR(fields.status());
  const Json* counts = json.find("counts");
  const Json* failures = json.find("failures");
  if (counts == nullptr || counts->if_object() == nullptr || failures == nullptr ||
      failures->if_array() == nullptr || range.end < range.first) {
    return corrupt_data("not a range of seeds");
  }
  for (const Json::Member& count : *counts->if_object()) {
    if (count.value.if_integer() == nullptr) {
      return corrupt_data("counts." + count.name + ": not a count");
    }
    range.counts[count.name] = static_cast<std::uint64_t>(*count.value.if_integer());
  }
  for (const Json& failure : *failures->if_array()) {
    JsonFields failed(failure, where, "failures.");
    const auto seed = static_cast<std::uint64_t>(failed.required_integer("seed", {0}));
    range.failures.emplace_back(seed, failed.string("message").value_or(""));
    TIDEMILL_RETURN_IF_ERROR(failed.status());
  }
  return range;
}

// Writes all of `text` at the end of an open file.
Status append_all(int descriptor, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return system_error(errno, "append to", path);
    }
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

std::uint64_t SeedLedger::next_seed(std::uint64_t fallback) const {
  std::uint64_t next = 0;
  for (const SeedRange& range : ranges) {
    next = std::max(next, range.end);
  }
  return ranges.empty() ? fallback : next;
}

std::string SeedLedger::to_text() const {
  SimulationCounts counts;
  std::set<std::string> programs;
  double seconds = 0.0;
  std::string failures;
  for (const SeedRange& range : ranges) {
    add_counts(range.counts, counts);
    programs.insert(range.program);
    seconds += range.seconds;
    for (const auto& [seed, message] : range.failures) {
      failures += "  seed " + std::to_string(seed) + ": " + message + "\n";
    }
  }
  std::string text = "ledger: " + std::to_string(ranges.size()) + " ranges by " +
                     std::to_string(programs.size()) + " programs in " +
                     std::to_string(static_cast<std::uint64_t>(seconds)) +
                     " s: " + counts_text(counts) + "\n";
  return text + (failures.empty() ? "ledger: no seed failed\n" : "ledger: failed:\n" + failures);
}

Result<SeedLedger> read_seed_ledger(const std::filesystem::path& path) {
  SeedLedger ledger;
  auto text = read_text_file(path, kMaxLedgerBytes);
  if (text.status().code() == Errc::kNotFound) {
    return ledger;
  }
  TIDEMILL_RETURN_IF_ERROR(text.status());
  std::string_view rest = text.value();
  for (std::uint64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (end == std::string_view::npos) {
      ledger.torn = true;
      break;
    }
    // A line that ends with a backslash is a torn line that the next writer has ended: skip it.
    if (line.empty() || line.ends_with('\\')) {
      continue;
    }
    const std::string where = path.string() + ":" + std::to_string(number);
    auto range = read_line(line, where);
    if (!range.ok()) {
      return corrupt_data(where + ": " + range.status().message());
    }
    ledger.ranges.push_back(std::move(range).value());
  }
  return ledger;
}

Status append_to_ledger(const std::filesystem::path& path, const SeedRange& range) {
  TIDEMILL_ASSIGN_OR_RETURN(const SeedLedger ledger, read_seed_ledger(path));
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return system_error(errno, "open", path);
  }
  // A backslash marks a torn line: no complete line ends with one.
  Status status = append_all(descriptor, (ledger.torn ? "\\\n" : "") + line_of(range), path);
  ::close(descriptor);
  return status;
}

}  // namespace tidemill::test
