// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/job_json.hpp"

#include <array>
#include <utility>

#include "base/json/fields.hpp"

namespace tidemill::storage {
namespace {

constexpr std::array kOperations = {StringOperation::kEq, StringOperation::kNe,
                                    StringOperation::kLike, StringOperation::kIlike};

std::string line_of(const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the newline
  return text;
}

Json hyperparameters_json(const JobHyperparameters& values) {
  return Json::Object{{"batch_size", values.batch_size},
                      {"n_epochs", values.n_epochs},
                      {"learning_rate_multiplier", values.learning_rate_multiplier},
                      {"eval_interval", values.eval_interval},
                      {"eval_samples", values.eval_samples}};
}

JobHyperparameters read_hyperparameters(JsonFields& fields) {
  JobHyperparameters values;
  values.batch_size = fields.required_integer("batch_size", {0});
  values.n_epochs = fields.required_integer("n_epochs", {0});
  values.learning_rate_multiplier = fields.required_real("learning_rate_multiplier", {0.0});
  values.eval_interval = fields.required_integer("eval_interval", {0});
  values.eval_samples = fields.required_integer("eval_samples", {0});
  return values;
}

Json grader_json(const JobGrader& grader) {
  switch (grader.kind) {
    case GraderKind::kNone: return {};
    case GraderKind::kReward: return Json::Object{{"reward", grader.reward}};
    case GraderKind::kStringCheck: break;
  }
  return Json::Object{{"name", grader.name},
                      {"operation", std::string(string_operation_name(grader.operation))},
                      {"input", grader.input},
                      {"reference", grader.reference}};
}

JobGrader read_grader(const Json* json, JsonFields& parent) {
  JobGrader grader;
  if (json == nullptr) {
    return grader;
  }
  JsonFields fields(*json, "", "grader.");
  if (auto reward = fields.string("reward")) {
    grader.kind = GraderKind::kReward;
    grader.reward = std::move(*reward);
  } else {
    grader.kind = GraderKind::kStringCheck;
    grader.name = fields.string("name").value_or("");
    grader.input = fields.string("input").value_or("");
    grader.reference = fields.string("reference").value_or("");
    const std::string operation = fields.string("operation").value_or("");
    for (const StringOperation one : kOperations) {
      grader.operation = string_operation_name(one) == operation ? one : grader.operation;
    }
    if (string_operation_name(grader.operation) != operation) {
      fields.refuse("operation", "unknown");
    }
  }
  parent.refuse(fields.status());
  return grader;
}

// Returns a failure to read what this program wrote.
Status damaged(const std::string& location, const Status& why) {
  return corrupt_data(location + ": " + why.message());
}

}  // namespace

std::string to_json_text(const JobHyperparameters& values) {
  return line_of(hyperparameters_json(values));
}

Result<JobHyperparameters> parse_hyperparameters(const std::string& text,
                                                 const std::string& location) {
  const auto json = parse_json(text);
  if (!json.ok()) {
    return damaged(location, json.status());
  }
  JsonFields fields(json.value(), "hyperparameters");
  const JobHyperparameters values = read_hyperparameters(fields);
  if (!fields.status().ok()) {
    return damaged(location, fields.status());
  }
  return values;
}

std::string to_json_text(const JobSpec& spec) {
  Json::Object metadata;
  for (const auto& [name, value] : spec.metadata) {
    metadata.push_back({name, value});
  }
  return line_of(Json::Object{{"model", spec.model},
                              {"training_file", spec.training_file},
                              {"validation_file", spec.validation_file},
                              {"suffix", spec.suffix},
                              {"seed", spec.seed},
                              {"metadata", std::move(metadata)},
                              {"method", std::string(job_method_name(spec.method))},
                              {"hyperparameters", hyperparameters_json(spec.hyperparameters)},
                              {"grader", grader_json(spec.grader)},
                              {"overrides", spec.overrides}});
}

Result<JobSpec> parse_spec(const std::string& text, const std::string& location) {
  const auto json = parse_json(text);
  if (!json.ok()) {
    return damaged(location, json.status());
  }
  JsonFields fields(json.value(), "");
  JobSpec spec;
  spec.model = fields.string("model").value_or("");
  spec.training_file = fields.string("training_file").value_or("");
  spec.validation_file = fields.string("validation_file").value_or("");
  spec.suffix = fields.string("suffix").value_or("");
  spec.seed = fields.required_integer("seed", {0});
  const Json* metadata = fields.find("metadata");
  const Json::Object* pairs = metadata == nullptr ? nullptr : metadata->if_object();
  for (std::size_t i = 0; pairs != nullptr && i < pairs->size(); ++i) {
    const std::string* value = (*pairs)[i].value.if_string();
    value == nullptr ? fields.refuse("metadata", "must be an object of texts")
                     : void(spec.metadata.emplace((*pairs)[i].name, *value));
  }
  const std::string method = fields.string("method").value_or("");
  spec.method = method == "reinforcement" ? JobMethod::kReinforcement : JobMethod::kSupervised;
  if (job_method_name(spec.method) != method) {
    fields.refuse("method", "unknown");
  }
  if (const Json* values = fields.find("hyperparameters")) {
    JsonFields members(*values, "", "hyperparameters.");
    spec.hyperparameters = read_hyperparameters(members);
    fields.refuse(members.status());
  }
  spec.grader = read_grader(fields.find("grader"), fields);
  spec.overrides = fields.string("overrides").value_or("");
  if (!fields.status().ok()) {
    return damaged(location, fields.status());
  }
  return spec;
}

std::string to_json_text(const std::vector<std::string>& ids) {
  Json::Array list(ids.begin(), ids.end());
  return line_of(Json(std::move(list)));
}

Result<std::vector<std::string>> parse_ids(const std::string& text, const std::string& location) {
  const auto json = parse_json(text);
  if (!json.ok()) {
    return damaged(location, json.status());
  }
  std::vector<std::string> ids;
  const Json::Array* list = json.value().if_array();
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    if (const std::string* id = (*list)[i].if_string()) {
      ids.push_back(*id);
    }
  }
  if (list == nullptr || ids.size() != list->size()) {
    return corrupt_data(location + ": must be a list of ids");
  }
  return ids;
}

}  // namespace tidemill::storage
