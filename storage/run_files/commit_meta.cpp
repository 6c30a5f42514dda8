// SPDX-License-Identifier: Apache-2.0
#include "storage/run_files/commit_meta.hpp"

#include <utility>

#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::storage {
namespace {

constexpr std::int64_t kMetaFormat = 1;

Json integer(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

std::uint64_t required(JsonFields& fields, const char* name) {
  return static_cast<std::uint64_t>(fields.required_integer(name, {0}));
}

std::uint32_t required_small(JsonFields& fields, const char* name) {
  return static_cast<std::uint32_t>(fields.required_integer(name, {0, 1 << 30}));
}

std::string text_of(JsonFields& fields, const char* name) {
  return fields.string(name).value_or("");
}

BestMeta read_best(const Json& json, const std::string& location, JsonFields& outer) {
  JsonFields fields(json, location, "best.");
  BestMeta best;
  best.value = fields.required_real("value", {});
  best.step = required(fields, "step");
  best.num_worse = required_small(fields, "num_worse");
  best.base_digest = text_of(fields, "base_digest");
  best.adapter_digest = text_of(fields, "adapter_digest");
  outer.refuse(fields.status());
  return best;
}

}  // namespace

std::string write_commit_meta(const CommitMeta& meta) {
  Json::Object object{{"format", kMetaFormat},
                      {"model", meta.model},
                      {"random_weights", meta.random_weights},
                      {"data_digest", meta.data_digest},
                      {"line", integer(meta.version.line)},
                      {"incarnation", integer(meta.version.incarnation)},
                      {"step", integer(meta.version.step)},
                      {"base_digest", meta.base_digest},
                      {"adapter_digest", meta.adapter_digest},
                      {"adapter", !meta.adapter_digest.empty()},
                      {"metrics_bytes", integer(meta.records.metrics_bytes)},
                      {"samples_bytes", integer(meta.records.samples_bytes)},
                      {"evaluated_step", integer(meta.evaluated_step)},
                      {"data_position", integer(meta.data_position)}};
  for (const auto& [name, text] :
       {std::pair{"tokenizer_digest", &meta.tokenizer_digest}, std::pair{"config", &meta.config},
        std::pair{"metrics_digest", &meta.records.metrics_digest},
        std::pair{"samples_digest", &meta.records.samples_digest}}) {
    if (!text->empty()) {
      object.push_back({name, *text});
    }
  }
  if (meta.best.has_value()) {
    object.push_back({"best", Json::Object{{"value", meta.best->value},
                                           {"step", integer(meta.best->step)},
                                           {"num_worse", integer(meta.best->num_worse)},
                                           {"base_digest", meta.best->base_digest},
                                           {"adapter_digest", meta.best->adapter_digest}}});
  }
  return Json(std::move(object)).to_text();
}

Result<CommitMeta> parse_commit_meta(std::string_view text, const std::string& location) {
  const auto json = parse_json(text);
  if (!json.ok()) {
    return corrupt_data(location + ": " + json.status().message());
  }
  JsonFields fields(json.value(), location);
  const std::int64_t format = fields.required_integer("format", {1});
  if (fields.status().ok() && format != kMetaFormat) {
    return invalid_argument(location + ": format " + std::to_string(format) +
                            " was written by a newer version of tidemill");
  }
  CommitMeta meta;
  meta.model = text_of(fields, "model");
  meta.random_weights = fields.boolean("random_weights").value_or(false);
  meta.data_digest = text_of(fields, "data_digest");
  meta.tokenizer_digest = text_of(fields, "tokenizer_digest");
  meta.config = text_of(fields, "config");
  meta.version.line = required_small(fields, "line");
  meta.version.incarnation = required_small(fields, "incarnation");
  meta.version.step = required(fields, "step");
  meta.base_digest = text_of(fields, "base_digest");
  meta.adapter_digest = text_of(fields, "adapter_digest");
  meta.records.metrics_bytes = required(fields, "metrics_bytes");
  meta.records.samples_bytes = required(fields, "samples_bytes");
  meta.records.metrics_digest = text_of(fields, "metrics_digest");
  meta.records.samples_digest = text_of(fields, "samples_digest");
  meta.evaluated_step =
      static_cast<std::uint64_t>(fields.integer("evaluated_step", {0}).value_or(0));
  meta.data_position = required(fields, "data_position");
  if (const Json* best = fields.find("best"); best != nullptr) {
    meta.best = read_best(*best, location, fields);
  }
  return fields.status().ok() ? Result<CommitMeta>(std::move(meta))
                              : corrupt_data(fields.status().message());
}

}  // namespace tidemill::storage
