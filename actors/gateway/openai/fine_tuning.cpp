// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/fine_tuning.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/gateway/openai/query.hpp"
#include "base/json/fields.hpp"
#include "base/schema/suggest.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::actors::openai {
namespace {

using storage::GraderKind;
using storage::JobGrader;
using storage::JobHyperparameters;
using storage::JobMethod;
using storage::JobRecord;
using storage::JobSpec;
using storage::StringOperation;

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxMessageBytes = 600;
constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxSuffix = 64;
constexpr std::size_t kMaxPairs = 16;  // of metadata, as in OpenAI's API
constexpr std::size_t kMaxKeyCharacters = 64;
constexpr std::size_t kMaxValueCharacters = 512;
constexpr std::size_t kMaxOverrides = 100;
constexpr std::int64_t kMaxCount = 1'000'000;
constexpr double kMaxMultiplier = 10'000.0;
constexpr std::uint32_t kMaxPage = 100;

std::string line_of(const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the newline
  return text;
}

bool is_auto(const Json& value) {
  const std::string* text = value.if_string();
  return text != nullptr && *text == "auto";
}

// Reads the fields of one request. The first refusal is kept.
class JobReader {
public:
  explicit JobReader(const Json& body) : fields_(body, "") {}

  ApiResult<JobSpec> read() {
    fields_.refuse_others({"model", "training_file", "validation_file", "suffix", "seed",
                           "metadata", "method", "hyperparameters", "integrations", "tidemill"});
    spec_.model = name("model", "the name of a model");
    spec_.training_file = name("training_file", "the id of a file");
    spec_.validation_file = fields_.string("validation_file").value_or("");
    if (spec_.validation_file.size() > kMaxNameBytes) {
      fields_.refuse("validation_file", "must be the id of a file");
    }
    spec_.seed = fields_.integer("seed", {0}).value_or(-1);
    read_suffix();
    read_metadata();
    read_method();
    read_integrations();
    read_overrides();
    if (!fields_.status().ok()) {
      return ApiError{400, clipped(fields_.status().message(), kMaxMessageBytes),
                      nested_.empty() ? fields_.refused() : nested_};
    }
    return std::move(spec_);
  }

private:
  std::string name(const char* field, const char* what) {
    std::string text = fields_.string(field).value_or("");
    if (text.empty() || text.size() > kMaxNameBytes) {
      fields_.refuse(field, std::string(text.empty() ? "missing; " : "") + "must be " + what);
    }
    return text;
  }

  // Keeps the refusal of a member object.
  void take(const JsonFields& member) {
    if (fields_.status().ok() && !member.status().ok()) {
      fields_.refuse(member.status());
      nested_ = member.refused();
    }
  }

  // The suffix becomes a part of the name of a model, and of a directory.
  void read_suffix() {
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_' || c == '.';
    };
    spec_.suffix = fields_.string("suffix").value_or("");
    if (spec_.suffix.size() > kMaxSuffix ||
        !std::all_of(spec_.suffix.begin(), spec_.suffix.end(), is_plain)) {
      fields_.refuse("suffix", "must be at most 64 characters of [A-Za-z0-9._-]");
    }
  }

  void read_metadata() {
    const Json* metadata = fields_.find("metadata");
    if (metadata == nullptr) {
      return;
    }
    JsonFields pairs(*metadata, "", "metadata.");
    const Json::Object* members = metadata->if_object();
    if (members != nullptr && members->size() > kMaxPairs) {
      fields_.refuse("metadata", "must have at most 16 members");
      return;
    }
    for (std::size_t i = 0; members != nullptr && i < members->size(); ++i) {
      const auto& [key, value] = (*members)[i];
      const std::string* text = value.if_string();
      if (text == nullptr || count_code_points(*text) > kMaxValueCharacters) {
        pairs.refuse(key, "must be a text of at most 512 characters");
      } else if (key.empty() || count_code_points(key) > kMaxKeyCharacters) {
        pairs.refuse(key, "a name must have 1 to 64 characters");
      } else {
        spec_.metadata.emplace(key, *text);
      }
    }
    take(pairs);
  }

  void read_method() {
    const Json* method = fields_.find("method");
    const Json* old = fields_.find("hyperparameters");
    if (method == nullptr) {
      if (old != nullptr) {
        read_hyperparameters(*old, "hyperparameters.");
      }
      return;
    }
    if (old != nullptr) {
      fields_.refuse("hyperparameters", "give them in method only");
    }
    JsonFields members(*method, "", "method.");
    members.refuse_others({"type", "supervised", "reinforcement", "dpo"});
    const std::string type = members.string("type").value_or("");
    if (type == "reinforcement") {
      spec_.method = JobMethod::kReinforcement;
    } else if (type != "supervised") {
      members.refuse("type", std::string(type == "dpo" ? "\"dpo\" is not supported; " : "") +
                                 "must be \"supervised\" or \"reinforcement\"");
    }
    for (const char* other : {"supervised", "reinforcement", "dpo"}) {
      if (other != type && members.has(other)) {
        members.refuse(other, "is not the type of the method");
      }
    }
    const Json* settings = members.find(type);
    if (settings == nullptr && type == "reinforcement") {
      members.refuse("reinforcement", "missing; must have a grader");
    }
    take(members);
    if (settings != nullptr && fields_.status().ok()) {
      read_settings(*settings, "method." + type + ".");
    }
  }

  // Reads `method.supervised` or `method.reinforcement`.
  void read_settings(const Json& settings, const std::string& prefix) {
    JsonFields members(settings, "", prefix);
    const bool reinforces = spec_.method == JobMethod::kReinforcement;
    members.refuse_others({"hyperparameters", reinforces ? "grader" : "hyperparameters"});
    const Json* grader = members.find("grader");
    if (reinforces && grader == nullptr) {
      members.refuse("grader", "missing; must be an object");
    }
    take(members);
    if (reinforces && grader != nullptr) {
      read_grader(*grader, prefix + "grader.");
    }
    if (const Json* values = members.find("hyperparameters")) {
      read_hyperparameters(*values, prefix + "hyperparameters.");
    }
  }

  void read_hyperparameters(const Json& values, const std::string& prefix) {
    JsonFields members(values, "", prefix);
    JobHyperparameters& read = spec_.hyperparameters;
    const auto count = [&](const char* name) -> std::int64_t {
      const Json* value = members.find(name);
      if (value == nullptr || is_auto(*value)) {
        return 0;
      }
      const std::int64_t* number = value->if_integer();
      if (number == nullptr || *number < 1 || *number > kMaxCount) {
        members.refuse(name, "must be \"auto\" or an integer from 1 to 1000000");
        return 0;
      }
      return *number;
    };
    read.batch_size = count("batch_size");
    read.n_epochs = count("n_epochs");
    if (const Json* value = members.find("learning_rate_multiplier");
        value != nullptr && !is_auto(*value)) {
      const double number = value->number().value_or(0.0);
      if (!(number > 0.0 && number <= kMaxMultiplier)) {
        members.refuse("learning_rate_multiplier",
                       "must be \"auto\" or a number greater than 0 and at most 10000");
      }
      read.learning_rate_multiplier = number;
    }
    if (members.has("learning_rate")) {
      members.refuse("learning_rate",
                     "unknown field; use learning_rate_multiplier, or the key train.learning_rate "
                     "in tidemill");
    }
    if (spec_.method == JobMethod::kSupervised) {
      refuse_unknown(members, values, {"batch_size", "n_epochs", "learning_rate_multiplier"});
    } else {
      read.eval_interval = count("eval_interval");
      read.eval_samples = count("eval_samples");
      refuse_unless(members, "compute_multiplier", "auto");
      refuse_unless(members, "reasoning_effort", "default");
      refuse_unknown(members, values,
                     {"batch_size", "n_epochs", "learning_rate_multiplier", "eval_interval",
                      "eval_samples", "compute_multiplier", "reasoning_effort"});
    }
    take(members);
  }

  // Refuses the first member of `values` that is not in `names`, and says which name was meant.
  static void refuse_unknown(JsonFields& members, const Json& values,
                             const std::vector<std::string>& names) {
    const Json::Object* given = values.if_object();
    for (std::size_t i = 0; given != nullptr && i < given->size(); ++i) {
      const std::string& name = (*given)[i].name;
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        const std::string meant = schema::closest_name(name, names);
        members.refuse(name,
                       "unknown field" + (meant.empty() ? "" : "; did you mean " + meant + '?'));
      }
    }
  }

  // Refuses a field with another value than that of its default.
  static void refuse_unless(JsonFields& members, const char* name, std::string_view allowed) {
    const Json* value = members.find(name);
    const std::string* text = value == nullptr ? nullptr : value->if_string();
    if (value != nullptr && (text == nullptr || *text != allowed)) {
      members.refuse(name, "not supported; the only value is " + quote(allowed));
    }
  }

  void read_grader(const Json& grader, const std::string& prefix) {
    JsonFields members(grader, "", prefix);
    const std::string type = members.string("type").value_or("");
    if (type == "string_check") {
      read_string_check(members);
    } else if (type == "tidemill") {
      members.refuse_others({"type", "reward"});
      read_reward(members.find("reward"), members);
    } else if (type.empty()) {
      members.refuse("type", "missing; must be \"string_check\" or \"tidemill\"");
    } else {
      members.refuse("type", "the grader " + quote(type) +
                                 " is not supported; use \"string_check\" or \"tidemill\"");
    }
    take(members);
  }

  void read_string_check(JsonFields& members) {
    members.refuse_others({"type", "name", "input", "reference", "operation"});
    JobGrader& grader = spec_.grader;
    grader.kind = GraderKind::kStringCheck;
    const auto text = [&](const char* name) {
      if (!members.has(name)) {
        members.refuse(name, "missing; must be a text");
      }
      return members.string(name).value_or("");
    };
    grader.name = text("name");
    grader.input = text("input");
    grader.reference = text("reference");
    const std::string operation = text("operation");
    constexpr std::array kOperations = {StringOperation::kEq, StringOperation::kNe,
                                        StringOperation::kLike, StringOperation::kIlike};
    for (const StringOperation one : kOperations) {
      grader.operation = string_operation_name(one) == operation ? one : grader.operation;
    }
    if (string_operation_name(grader.operation) != operation) {
      members.refuse("operation", R"(must be "eq", "ne", "like" or "ilike")");
    }
  }

  void read_reward(const Json* reward, JsonFields& members) {
    const Json::Array* list = reward == nullptr ? nullptr : reward->if_array();
    if (list == nullptr && (reward == nullptr || reward->if_object() == nullptr)) {
      members.refuse("reward", "must be an object, or a list of objects");
      return;
    }
    const auto check = [&](const Json& one) {
      const Json* kind = one.find("kind");
      const std::string* name = kind == nullptr ? nullptr : kind->if_string();
      if (name == nullptr) {
        members.refuse("reward", "must be an object with a kind, or a list of such objects");
      } else if (*name == "command") {
        members.refuse("reward", "the kind \"command\" is not allowed in requests");
      }
    };
    if (list == nullptr) {
      check(*reward);
    } else {
      std::for_each(list->begin(), list->end(), check);
    }
    spec_.grader.kind = GraderKind::kReward;
    spec_.grader.reward = line_of(*reward);
  }

  void read_integrations() {
    const Json* integrations = fields_.find("integrations");
    const Json::Array* list = integrations == nullptr ? nullptr : integrations->if_array();
    if (integrations != nullptr && (list == nullptr || !list->empty())) {
      fields_.refuse("integrations", "not supported: metrics are sent to no other service");
    }
  }

  void read_overrides() {
    const Json* overrides = fields_.find("tidemill");
    if (overrides == nullptr) {
      return;
    }
    JsonFields members(*overrides, "", "tidemill.");
    const Json::Object* object = overrides->if_object();
    if (object != nullptr && object->size() > kMaxOverrides) {
      fields_.refuse("tidemill", "must have at most 100 members");
    }
    for (std::size_t i = 0; object != nullptr && i < object->size(); ++i) {
      const auto& [key, value] = (*object)[i];
      if (key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") != std::string::npos ||
          key.empty()) {
        members.refuse(key, "must be a dotted key of a run file, such as train.steps");
      } else if (key == "reward") {
        members.refuse(key, "is not a key that a job may set; use method.reinforcement.grader");
      } else if (value.if_object() != nullptr && key != "data.chat_template_kwargs") {
        members.refuse(key, "must not be an object; use dotted keys");
      }
    }
    take(members);
    spec_.overrides = object == nullptr || object->empty() ? "" : line_of(*overrides);
  }

  JsonFields fields_;
  JobSpec spec_;
  std::string nested_;  // the path of a refused member of a member
};

// -- responses ------------------------------------------------------------------------------------

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json time_or_null(std::int64_t time) {
  return time == 0 ? Json() : Json(time);
}

Json count_or_auto(std::int64_t count) {
  return count == 0 ? Json("auto") : Json(count);
}

// Returns the document in a JSON text of the store, or `otherwise` if there is none.
Json document_of(const std::string& text, Json otherwise) {
  auto json = parse_json(text);
  return json.ok() ? std::move(json).value() : std::move(otherwise);
}

Json::Object hyperparameters_json(const JobHyperparameters& values) {
  const double multiplier = values.learning_rate_multiplier;
  return {{"batch_size", count_or_auto(values.batch_size)},
          {"learning_rate_multiplier", multiplier == 0.0 ? Json("auto") : Json(multiplier)},
          {"n_epochs", count_or_auto(values.n_epochs)}};
}

Json grader_json(const JobGrader& grader) {
  if (grader.kind == GraderKind::kReward) {
    return Json::Object{{"type", "tidemill"}, {"reward", document_of(grader.reward, Json())}};
  }
  return Json::Object{{"type", "string_check"},
                      {"name", grader.name},
                      {"input", grader.input},
                      {"reference", grader.reference},
                      {"operation", std::string(string_operation_name(grader.operation))}};
}

Json method_json(const JobSpec& spec, const JobHyperparameters& values) {
  Json::Object hyperparameters = hyperparameters_json(values);
  if (spec.method == JobMethod::kSupervised) {
    return Json::Object{
        {"type", "supervised"},
        {"supervised", Json::Object{{"hyperparameters", std::move(hyperparameters)}}}};
  }
  hyperparameters.push_back({"eval_interval", count_or_auto(values.eval_interval)});
  hyperparameters.push_back({"eval_samples", count_or_auto(values.eval_samples)});
  hyperparameters.push_back({"compute_multiplier", "auto"});
  hyperparameters.push_back({"reasoning_effort", "default"});
  return Json::Object{
      {"type", "reinforcement"},
      {"reinforcement", Json::Object{{"grader", grader_json(spec.grader)},
                                     {"hyperparameters", std::move(hyperparameters)}}}};
}

Json error_json(const storage::JobError& error) {
  if (error.code.empty()) {
    return {};
  }
  return Json::Object{
      {"code", error.code}, {"message", error.message}, {"param", text_or_null(error.param)}};
}

Json metadata_json(const JobSpec& spec) {
  if (spec.metadata.empty()) {
    return {};
  }
  Json::Object pairs;
  for (const auto& [key, value] : spec.metadata) {
    pairs.push_back({key, value});
  }
  return pairs;
}

Json event_json(const storage::JobEvent& event) {
  return Json::Object{{"object", "fine_tuning.job.event"},
                      {"id", event.id},
                      {"created_at", event.created_at},
                      {"level", std::string(event_level_name(event.level))},
                      {"message", event.message},
                      {"data", document_of(event.data, Json::Object{})},
                      {"type", std::string(event_type_name(event.type))}};
}

Json checkpoint_json(const std::string& job, const storage::JobCheckpoint& checkpoint) {
  return Json::Object{{"object", "fine_tuning.job.checkpoint"},
                      {"id", checkpoint.id},
                      {"created_at", checkpoint.created_at},
                      {"fine_tuned_model_checkpoint", checkpoint.fine_tuned_model_checkpoint},
                      {"fine_tuning_job_id", job},
                      {"metrics", document_of(checkpoint.metrics, Json::Object{})},
                      {"step_number", checkpoint.step_number}};
}

template <class Entry, class Write>
Json list_json(const std::vector<Entry>& entries, bool has_more, Write write) {
  Json::Array data;
  for (const Entry& entry : entries) {
    data.push_back(write(entry));
  }
  return Json::Object{{"object", "list"},
                      {"data", std::move(data)},
                      {"first_id", entries.empty() ? Json() : Json(entries.front().id)},
                      {"last_id", entries.empty() ? Json() : Json(entries.back().id)},
                      {"has_more", has_more}};
}

}  // namespace

ApiResult<JobSpec> parse_job(std::string_view body) {
  if (body.size() > kMaxJobBytes) {
    return ApiError{400, "the body is longer than " + std::to_string(kMaxJobBytes) + " bytes"};
  }
  const auto json = parse_json(body, {.max_depth = kMaxDepth});
  if (!json.ok()) {
    return not_json(json.status());
  }
  return JobReader(json.value()).read();
}

ApiResult<storage::PageQuery> parse_page_query(std::string_view target, const std::string& job,
                                               std::uint32_t default_limit) {
  // Only jobs have metadata.
  QueryReader reader(target, {"after", "limit", job.empty() ? "metadata[]" : "limit"});
  storage::PageQuery query;
  query.job = job;
  query.metadata = reader.members("metadata");
  query.after = reader.text("after");
  query.limit = reader.limit("limit", default_limit, kMaxPage);
  if (reader.error().has_value()) {
    return *reader.error();
  }
  return query;
}

Json to_json(const JobRecord& job) {
  const JobHyperparameters& values = job.is_resolved ? job.resolved : job.spec.hyperparameters;
  const bool is_running = job.state == storage::JobState::kRunning;
  Json::Array files(job.result_files.begin(), job.result_files.end());
  return Json::Object{
      {"object", "fine_tuning.job"},
      {"id", job.id},
      {"created_at", job.created_at},
      {"finished_at", time_or_null(job.finished_at)},
      {"estimated_finish", is_running ? time_or_null(job.estimated_finish) : Json()},
      {"status", std::string(job_state_name(job.state))},
      {"error", error_json(job.error)},
      {"model", job.spec.model},
      {"fine_tuned_model", text_or_null(job.fine_tuned_model)},
      {"organization_id", "tidemill"},
      {"training_file", job.spec.training_file},
      {"validation_file", text_or_null(job.spec.validation_file)},
      {"result_files", std::move(files)},
      {"trained_tokens", job.trained_tokens < 0 ? Json() : Json(job.trained_tokens)},
      {"hyperparameters", hyperparameters_json(values)},
      {"method", method_json(job.spec, values)},
      {"seed", job.spec.seed},
      {"integrations", Json::Array{}},
      {"metadata", metadata_json(job.spec)},
      {"user_provided_suffix", text_or_null(job.spec.suffix)},
      {"tidemill", document_of(job.spec.overrides, Json())}};
}

Json to_json(const storage::JobPage& page) {
  return list_json(page.entries, page.has_more, [](const JobRecord& job) { return to_json(job); });
}

Json to_json(const storage::JobEventPage& page) {
  return list_json(page.entries, page.has_more, event_json);
}

Json to_json(const storage::JobCheckpointPage& page) {
  return list_json(page.entries, page.has_more, [&](const storage::JobCheckpoint& checkpoint) {
    return checkpoint_json(page.job, checkpoint);
  });
}

}  // namespace tidemill::actors::openai
