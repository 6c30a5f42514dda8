// SPDX-License-Identifier: Apache-2.0
#include "actors/recorder/metrics_events.hpp"

#include <algorithm>
#include <vector>

#include "storage/events/event_file.hpp"
#include "storage/run_files/metrics_line.hpp"

namespace tidemill::actors {
namespace {

// A line that cannot be read becomes a record without scalars.
std::string record_of(std::string_view text, double wall_seconds) {
  storage::EventTime time{wall_seconds, 0};
  std::vector<storage::EventScalar> scalars;
  if (const auto line = storage::parse_metrics_line(text); line.ok()) {
    time.step = static_cast<std::int64_t>(line.value().step);
    for (const auto& [name, value] : line.value().metrics) {
      scalars.push_back({line.value().kind + '/' + name, static_cast<float>(value)});
    }
  }
  return storage::event_record(time, scalars);
}

}  // namespace

std::string event_records(std::string_view lines, double wall_seconds) {
  std::string records;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size() - 1);
    records += record_of(lines.substr(0, end), wall_seconds);
    lines.remove_prefix(end + 1);
  }
  return records;
}

}  // namespace tidemill::actors
