// SPDX-License-Identifier: Apache-2.0
#include "storage/run_files/metrics_line.hpp"

#include <optional>
#include <utility>

#include "base/json/json.hpp"

namespace tidemill::storage {

std::string write_metrics_line(const MetricsLine& line) {
  Json::Object object{{"kind", line.kind}, {"step", static_cast<std::int64_t>(line.step)}};
  for (const auto& [name, value] : line.metrics) {
    object.push_back({name, value});
  }
  return Json(std::move(object)).to_line();
}

Result<MetricsLine> parse_metrics_line(std::string_view text) {
  const Result<Json> parsed = parse_json(text);
  if (!parsed.ok()) {
    return corrupt_data(parsed.status().message());
  }
  const Json::Object* object = parsed.value().if_object();
  if (object == nullptr) {
    return corrupt_data("must be a JSON object");
  }
  MetricsLine line;
  bool has_step = false;
  for (const Json::Member& member : *object) {
    if (member.name == "kind" && member.value.if_string() != nullptr) {
      line.kind = *member.value.if_string();
    } else if (member.name == "step" && member.value.if_integer() != nullptr &&
               *member.value.if_integer() >= 0) {
      line.step = static_cast<std::uint64_t>(*member.value.if_integer());
      has_step = true;
    } else if (const std::optional<double> number = member.value.number()) {
      line.metrics[member.name] = *number;
    }
  }
  if (line.kind.empty() || !has_step) {
    return corrupt_data(line.kind.empty() ? "kind: missing" : "step: missing");
  }
  return line;
}

}  // namespace tidemill::storage
