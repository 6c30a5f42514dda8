// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/job_config.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "base/schema/reference.hpp"
#include "base/schema/suggest.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rewards.hpp"
#include "workflows/rl/rl_settings.hpp"
#include "workflows/sft/sft_settings.hpp"

namespace tidemill::workflows {
namespace {

using storage::GraderKind;
using storage::JobMethod;
using storage::JobSpec;

constexpr double kSupervisedRate = 2e-4;
constexpr double kReinforcementRate = 5e-5;
constexpr std::uint64_t kRowsPerBatchRow = 500;
constexpr std::int64_t kEvalInterval = 10;  // steps
constexpr std::int64_t kCommitSteps = 10;
constexpr std::int64_t kCommitSeconds = 60;
constexpr std::int64_t kMaxNewTokens = 256;
constexpr std::size_t kMaxRewards = 64;
constexpr std::int64_t kSamplesBytes = std::int64_t{64} << 20U;  // of the records of a job

// The keys that a request may set. A name that ends with a dot stands for all keys below it. Keys
// that are missing name files, programs or limits of the server.
constexpr auto kOwnKeys = std::to_array<std::string_view>({
    "algorithm.",
    "checkpoint.every_seconds",
    "checkpoint.every_steps",
    "data.chat",
    "data.chat_template_kwargs",
    "data.chat_template_kwargs.",
    "data.on_error",
    "data.on_long_prompt",
    "data.max_prompt_tokens",
    "data.seed",
    "data.shuffle",
    "data.system",
    "eval.every_steps",
    "eval.keep_best",
    "eval.min_improvement",
    "eval.patience",
    "eval.samples",
    "eval.temperature",
    "rollout.frequency_penalty",
    "rollout.group_size",
    "rollout.max_new_tokens",
    "rollout.min_p",
    "rollout.presence_penalty",
    "rollout.repetition_penalty",
    "rollout.stop",
    "rollout.stop_ids",
    "rollout.temperature",
    "rollout.top_k",
    "rollout.top_p",
    "staleness.",
    "train.adapter.alpha",
    "train.adapter.bias",
    "train.adapter.dora",
    "train.adapter.feedforward_modules",
    "train.adapter.kind",
    "train.adapter.rank",
    "train.adapter.rslora",
    "train.adapter.target_modules",
    "train.betas",
    "train.epochs",
    "train.epsilon",
    "train.learning_rate",
    "train.max_grad_norm",
    "train.micro_batch_tokens",
    "train.minibatches",
    "train.recompute",
    "train.schedule",
    "train.steps",
    "train.warmup_steps",
    "train.weight_decay",
    "train.weight_decay_exclude",
});

// A key of a run that a request cannot set, and why or what sets it instead.
struct RefusedKey {
  std::string_view key;  // if it ends with a dot: all keys below it
  std::string_view reason;
};
constexpr auto kRefusedKeys = std::to_array<RefusedKey>({
    {"train.prompts_per_step", "use batch_size"},
    {"train.sequences_per_step", "use batch_size"},
    {"train.batch_size", "use batch_size"},
    {"data.epochs", "use n_epochs"},
    {"data.train", "use training_file"},
    {"data.train.", "use training_file"},
    {"data.eval", "use validation_file"},
    {"train.adapter", "use its keys, such as train.adapter.rank"},
    {"train.adapter.path", "a job trains a new adapter"},
    {"train.adapter.modules_to_save", "a job trains no whole modules"},
    {"rollout.kv_bytes", "the server sets it (serve.kv_bytes)"},
    {"rollout.prefill_tokens", "the server sets it"},
    {"rollout.workers", "the server sets it"},
    {"seed", "use the member seed"},
    {"reward", "use method.reinforcement.grader"},
    {"reward.", "use method.reinforcement.grader"},
    {"device.", "the server sets it"},
});

bool is_own_key(std::string_view key) {
  return std::any_of(kOwnKeys.begin(), kOwnKeys.end(), [key](std::string_view own) {
    return own.ends_with('.') ? key.starts_with(own) : key == own;
  });
}

// Returns what sets the key of a run at `path` in a job, "; did you mean PATH?", or "" if nothing
// does.
std::string counterpart_of(const std::string& path) {
  if (is_own_key(path)) {
    return "; did you mean " + path + '?';
  }
  const auto* const found =
      std::find_if(kRefusedKeys.begin(), kRefusedKeys.end(), [&path](const RefusedKey& refused) {
        return refused.key.ends_with('.') ? path.starts_with(refused.key) : path == refused.key;
      });
  return found == kRefusedKeys.end() ? "" : "; " + std::string(found->reason);
}

// Returns what is known about `name`, the last one of a key that runs do not have: why no key has
// this name of other programs, the key that other programs call so, or the only key with this last
// name. `tidemill check` knows the same.
std::string meaning_of(const std::string& name, const schema::StructSchema& run) {
  if (const std::string absence = schema::absence_of(run, name); !absence.empty()) {
    return "; " + absence;
  }
  const std::string path = schema::path_of_name(run, name);
  return path.empty() ? "" : counterpart_of(path);
}

bool has_key(const std::vector<KeyReference>& keys, std::string_view path) {
  return std::any_of(keys.begin(), keys.end(),
                     [path](const KeyReference& key) { return key.path == path; });
}

bool is_key_of(const schema::StructSchema& run, const std::string& path) {
  return has_key(list_keys(run), path);
}

// Returns why `key` is refused, or the key that was meant, or "" if neither is known.
std::string refusal_of(const std::string& key, JobMethod method) {
  if (std::string known = counterpart_of(key); !known.empty()) {
    return known;
  }
  const auto sft = Schema<SftOptions>::described();
  const auto rl = Schema<RlOptions>::described();
  std::array<const schema::StructSchema*, 2> runs = {&sft.structure(), &rl.structure()};
  if (method == JobMethod::kReinforcement) {
    std::swap(runs[0], runs[1]);
  }
  if (is_key_of(*runs[0], key) || is_key_of(*runs[1], key)) {
    return "";  // it is not for clients
  }
  const std::string section = key.substr(0, key.rfind('.') + 1);
  const std::string name = key.substr(section.size());
  for (const schema::StructSchema* run : runs) {
    if (std::string known = meaning_of(name, *run); !known.empty()) {
      return known;
    }
  }
  std::vector<std::string> near;  // the keys of the same section
  for (const std::string_view own : kOwnKeys) {
    const std::string_view last = own.substr(own.rfind('.') + 1);
    if (!last.empty() && own.substr(0, own.size() - last.size()) == section) {
      near.emplace_back(last);
    }
  }
  const std::string meant = schema::closest_name(name, near);
  // One word in common is too little.
  return meant.empty() || name.ends_with('_' + meant) ? ""
                                                      : "; did you mean " + section + meant + '?';
}

// Sets the value of a dotted key, and makes the objects that it goes through.
void set_key(Json& root, std::string_view key, Json value) {
  const std::size_t dot = key.find('.');
  const std::string name(key.substr(0, dot));
  Json::Object members = root.if_object() != nullptr ? *root.if_object() : Json::Object();
  auto member = std::find_if(members.begin(), members.end(),
                             [&name](const Json::Member& one) { return one.name == name; });
  if (member == members.end()) {
    member = members.insert(members.end(), {name, Json(Json::Object())});
  }
  if (dot == std::string_view::npos) {
    member->value = std::move(value);
  } else {
    set_key(member->value, key.substr(dot + 1), std::move(value));
  }
  root = Json(std::move(members));
}

Json integer(std::uint64_t value) {
  return {static_cast<std::int64_t>(value)};
}

// Returns the value of the key `reward`.
Result<Json> reward_of(const storage::JobGrader& grader) {
  const std::string field = "method.reinforcement.grader";
  if (grader.kind == GraderKind::kReward) {
    return parse_json(grader.reward);
  }
  if (grader.operation != storage::StringOperation::kEq) {
    return invalid_argument(field + ".operation: must be eq; for others, use the type tidemill");
  }
  if (grader.input != "{{sample.output_text}}") {
    return invalid_argument(field + ".input: must be \"{{sample.output_text}}\"");
  }
  if (grader.reference != "{{item.answer}}") {
    return invalid_argument(field + ".reference: must be \"{{item.answer}}\"");
  }
  return Json(Json::Object{{"kind", "exact_match"}});
}

// The adapter of the job names its model, so the path is one that is valid elsewhere too.
void set_model(const ServeOptions& server, Json& config) {
  set_key(config, "model.path", absolute_path(server.model.path).string());
  if (server.model.dtype.has_value()) {
    constexpr std::array<const char*, 4> kNames = {"f32", "bf16", "int8", "nf4"};
    set_key(config, "model.dtype", kNames.at(static_cast<std::size_t>(*server.model.dtype)));
  }
}

void set_supervised(const storage::JobHyperparameters& values, Json& config) {
  set_key(config, "workflow", "sft");
  set_key(config, "train.sequences_per_step", values.batch_size);
  set_key(config, "train.learning_rate", kSupervisedRate * values.learning_rate_multiplier);
}

Status set_reinforcement(const JobSpec& spec, const storage::JobHyperparameters& values,
                         std::int64_t max_tokens, Json& config) {
  TIDEMILL_ASSIGN_OR_RETURN(Json reward, reward_of(spec.grader));
  set_key(config, "workflow", "rl");
  set_key(config, "reward", std::move(reward));
  set_key(config, "train.prompts_per_step", values.batch_size);
  set_key(config, "train.learning_rate", kReinforcementRate * values.learning_rate_multiplier);
  set_key(config, "eval.samples", values.eval_samples);
  // The other half is for the prompt.
  set_key(config, "rollout.max_new_tokens",
          std::clamp<std::int64_t>(max_tokens / 2, 1, kMaxNewTokens));
  // So that the result does not depend on what else the server does.
  set_key(config, "staleness", Json(Json::Object{{"max", 1}, {"schedule", "fixed"}}));
  return {};
}

Result<Json> parse_overrides(const std::string& overrides) {
  return overrides.empty() ? Json(Json::Object()) : parse_json(overrides);
}

// Refuses `key`, which the request sets among the overrides.
Status refuse_override(const std::string& key, const std::string& problem) {
  return invalid_argument("tidemill." + key + ": " + problem);
}

// Refuses overrides that contradict other fields of the request, or need one. `batch_size` is that
// of the job.
Status check_overrides(const JobSpec& spec, std::int64_t batch_size, const Json& overrides) {
  const auto is_set = [&overrides](const char* key) {
    const Json* value = overrides.find(key);
    return value != nullptr && !value->is_null();
  };
  if (spec.hyperparameters.n_epochs != 0 && is_set("train.steps")) {
    return refuse_override("train.steps",
                           "cannot be combined with n_epochs; leave one of them out");
  }
  if (spec.hyperparameters.learning_rate_multiplier != 0.0 && is_set("train.learning_rate")) {
    return refuse_override(
        "train.learning_rate",
        "cannot be combined with learning_rate_multiplier; leave one of them out");
  }
  const Json* minibatches = overrides.find("train.minibatches");
  const std::int64_t* count = minibatches == nullptr ? nullptr : minibatches->if_integer();
  if (spec.method == JobMethod::kReinforcement && count != nullptr && *count > 0 &&
      batch_size % *count != 0) {
    return refuse_override("train.minibatches",
                           "must divide batch_size (" + std::to_string(batch_size) + ")");
  }
  for (const char* key : {"eval.every_steps", "eval.keep_best", "eval.patience"}) {
    const Json* value = overrides.find(key);
    const bool evaluates = value != nullptr && (value->number().value_or(0.0) > 0.0 ||
                                                (value->if_bool() != nullptr && *value->if_bool()));
    if (evaluates && spec.validation_file.empty()) {
      return refuse_override(key, "needs validation_file");
    }
  }
  return {};
}

// Refuses keys that only the other method has, and keys of sections that only it has.
class MethodKeys {
public:
  explicit MethodKeys(JobMethod method)
      : is_supervised_(method == JobMethod::kSupervised),
        sft_(list_keys(Schema<SftOptions>::described().structure())),
        rl_(list_keys(Schema<RlOptions>::described().structure())) {}

  [[nodiscard]] Status check(const std::string& key) const {
    const auto& own = is_supervised_ ? sft_ : rl_;
    const auto& other = is_supervised_ ? rl_ : sft_;
    const std::string section = key.substr(0, key.find('.'));
    const bool is_others =
        !has_key(own, key) &&
        (has_key(other, key) || (has_key(other, section) && !has_key(own, section)));
    return !is_others ? Status()
                      : refuse_override(
                            key, is_supervised_
                                     ? "belongs to the method reinforcement, not to supervised"
                                     : "belongs to the method supervised, not to reinforcement");
  }

private:
  bool is_supervised_;
  std::vector<KeyReference> sft_;
  std::vector<KeyReference> rl_;
};

Status set_overrides(const Json& overrides, JobMethod method, Json& config) {
  const MethodKeys keys(method);
  for (const Json::Member& member : *overrides.if_object()) {
    if (!is_own_key(member.name)) {
      return refuse_override(member.name,
                             "is not a key that a job may set" + refusal_of(member.name, method));
    }
    TIDEMILL_RETURN_IF_ERROR(keys.check(member.name));
    const std::string* text = member.value.if_string();
    if (member.name == "train.adapter.kind" &&
        (text == nullptr || (*text != "lora" && *text != "ia3"))) {
      return refuse_override(member.name, "must be lora or ia3");
    }
    set_key(config, member.name, member.value);
  }
  return {};
}

// Sets in `values` what the overrides of the request say. Values of a wrong type are refused when
// the configuration is read.
void apply_overrides(const JobSpec& spec, storage::JobHyperparameters& values) {
  const auto overrides = parse_overrides(spec.overrides);
  if (!overrides.ok()) {
    return;
  }
  const auto find = [&overrides](const char* key) { return overrides.value().find(key); };
  const double base = spec.method == JobMethod::kSupervised ? kSupervisedRate : kReinforcementRate;
  if (const Json* rate = find("train.learning_rate"); rate != nullptr) {
    values.learning_rate_multiplier =
        rate->number().value_or(base * values.learning_rate_multiplier) / base;
  }
  const auto set_integer = [&find](const char* key, std::int64_t& value) {
    const Json* given = find(key);
    value = given != nullptr && given->if_integer() != nullptr ? *given->if_integer() : value;
  };
  set_integer("eval.every_steps", values.eval_interval);
  set_integer("eval.samples", values.eval_samples);
  if (const Json* steps = find("train.steps"); steps != nullptr && !steps->is_null()) {
    values.n_epochs = spec.hyperparameters.n_epochs;
  }
}

}  // namespace

JobSpec expand_example(JobSpec spec) {
  constexpr std::string_view kQuickstart = "quickstart";
  if (spec.training_file != kQuickstart && spec.training_file != kExampleFile) {
    return spec;
  }
  spec.training_file = kExampleFile;
  const bool leaves_all = spec.method == JobMethod::kSupervised && spec.overrides.empty() &&
                          spec.hyperparameters == storage::JobHyperparameters();
  if (!leaves_all) {
    return spec;
  }
  spec.method = JobMethod::kReinforcement;
  spec.grader.kind = GraderKind::kReward;
  spec.grader.reward = R"({"kind": "number"})";
  spec.hyperparameters.batch_size = 32;
  spec.hyperparameters.learning_rate_multiplier = 40.0;
  spec.overrides = R"({"rollout.max_new_tokens": 4, "train.steps": 80})";
  return spec;
}

storage::JobHyperparameters resolve(const JobSpec& spec, std::uint64_t num_rows) {
  const bool supervised = spec.method == JobMethod::kSupervised;
  storage::JobHyperparameters values = spec.hyperparameters;
  if (values.batch_size == 0) {
    values.batch_size = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(num_rows / kRowsPerBatchRow), 1, supervised ? 32 : 16);
  }
  if (values.n_epochs == 0) {
    values.n_epochs = supervised ? 3 : 1;
  }
  if (values.learning_rate_multiplier == 0.0) {
    values.learning_rate_multiplier = 1.0;
  }
  if (values.eval_interval == 0) {
    values.eval_interval = spec.validation_file.empty() ? 0 : kEvalInterval;
  }
  if (values.eval_samples == 0) {
    values.eval_samples = 1;
  }
  apply_overrides(spec, values);
  return values;
}

std::int64_t max_job_tokens(const ServeOptions& server, const engines::ModelConfig& model) {
  return std::min(server.serve.tuning.job_tokens, model.max_positions);
}

Result<std::string> job_config(const ServeOptions& server, const JobSpec& spec,
                               const JobInputs& inputs) {
  const storage::JobHyperparameters values = resolve(spec, inputs.num_rows);
  Json config{Json::Object()};
  set_model(server, config);
  if (spec.method == JobMethod::kSupervised) {
    set_supervised(values, config);
  } else {
    TIDEMILL_RETURN_IF_ERROR(set_reinforcement(spec, values, inputs.max_tokens, config));
  }
  set_key(config, "train.adapter.kind", "lora");
  set_key(config, "data.train", inputs.training_path);
  TIDEMILL_ASSIGN_OR_RETURN(const Json overrides, parse_overrides(spec.overrides));
  TIDEMILL_RETURN_IF_ERROR(check_overrides(spec, values.batch_size, overrides));
  if (values.n_epochs != 0) {
    set_key(config, "data.epochs", values.n_epochs);
  }
  if (!inputs.validation_path.empty()) {
    set_key(config, "data.eval", inputs.validation_path);
    set_key(config, "eval.every_steps", values.eval_interval);
  }
  set_key(config, "checkpoint.every_steps", kCommitSteps);
  set_key(config, "checkpoint.every_seconds", kCommitSeconds);
  set_key(config, "record.samples_bytes", kSamplesBytes);
  set_key(config, "seed", integer(static_cast<std::uint64_t>(spec.seed)));
  set_key(config, "device.threads", server.device.threads);
  if (inputs.memory_bytes > 0) {
    set_key(config, "device.memory_bytes", inputs.memory_bytes);
  }
  TIDEMILL_RETURN_IF_ERROR(set_overrides(overrides, spec.method, config));
  return config.to_text();
}

bool limit_sequences(std::int64_t max_tokens, std::variant<SftOptions, RlOptions>& job) {
  std::int64_t most = max_tokens;
  if (const auto* rl = std::get_if<RlOptions>(&job)) {
    most = std::max<std::int64_t>(max_tokens - rl->rollout.max_new_tokens, 1);
  }
  std::optional<std::int64_t>& wanted = std::visit(
      [](auto& options) -> auto& { return options.data.max_prompt_tokens; }, job);
  if (wanted.has_value() && *wanted <= most) {
    return false;
  }
  wanted = most;
  return true;
}

Status check_rows(const JobSpec& spec, std::uint64_t num_rows) {
  const storage::JobHyperparameters values = resolve(spec, num_rows);
  const auto rows = static_cast<std::uint64_t>(values.n_epochs) * num_rows;
  if (values.n_epochs == 0 || rows >= static_cast<std::uint64_t>(values.batch_size)) {
    return {};
  }
  return invalid_argument(
      "training_file: " + std::to_string(num_rows) + (num_rows == 1 ? " row in " : " rows in ") +
      std::to_string(values.n_epochs) + (values.n_epochs == 1 ? " epoch" : " epochs") +
      " are fewer than one batch of " + std::to_string(values.batch_size) +
      "; lower batch_size or raise n_epochs");
}

// Checks that prompts and responses as long as the options of a job allow have room in a sequence.
Status check_lengths(const std::variant<SftOptions, RlOptions>& job, const ServeOptions& server,
                     const engines::ModelConfig& model) {
  const std::int64_t most = max_job_tokens(server, model);
  const std::string sequence =
      std::to_string(most) + " tokens of a sequence of a job (" +
      (most < server.serve.tuning.job_tokens ? "the model's context" : "serve.tuning.job_tokens") +
      ")";
  const auto* rl = std::get_if<RlOptions>(&job);
  const std::int64_t response = rl == nullptr ? 0 : rl->rollout.max_new_tokens;
  if (response >= most) {
    return invalid_argument("rollout.max_new_tokens: " + std::to_string(response) +
                            " leaves no room for a prompt in the " + sequence);
  }
  const std::int64_t prompt =
      std::visit([](const auto& options) { return options.data.max_prompt_tokens; }, job)
          .value_or(0);
  if (prompt <= most - response) {
    return {};
  }
  const std::string tokens = "data.max_prompt_tokens: " + std::to_string(prompt);
  return invalid_argument(rl == nullptr
                              ? tokens + " exceeds the " + sequence
                              : tokens + " and rollout.max_new_tokens (" +
                                    std::to_string(response) + ") exceed the " + sequence);
}

Status check_options(const std::variant<SftOptions, RlOptions>& job, const ServeOptions& server,
                     const engines::ModelConfig& model) {
  TIDEMILL_RETURN_IF_ERROR(check_lengths(job, server, model));
  if (const auto* sft = std::get_if<SftOptions>(&job)) {
    TIDEMILL_RETURN_IF_ERROR(check_fit(*sft, model));
    return check_adapter(sft->train.common, model);
  }
  const auto& rl = std::get<RlOptions>(job);
  TIDEMILL_RETURN_IF_ERROR(check_fit(rl, model));
  if (rl.reward.size() > kMaxRewards) {
    return invalid_argument("reward: " + std::to_string(rl.reward.size()) +
                            " rewards; a job may have at most " + std::to_string(kMaxRewards));
  }
  TIDEMILL_RETURN_IF_ERROR(make_reference_answer_check(rl.reward).status());  // compiles patterns
  return check_adapter(rl.train.common, model);
}

std::string tuned_model_name(const std::string& model, const storage::JobRecord& job) {
  constexpr std::size_t kIdCharacters = 8;
  const std::string id = job.id.substr(job.id.size() - std::min(kIdCharacters, job.id.size()));
  return "ft:" + model + ":" + job.spec.suffix + ":" + id;
}

}  // namespace tidemill::workflows
