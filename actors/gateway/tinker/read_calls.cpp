// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/tinker/read_calls.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json/fields.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "engines/sampling/sampler.hpp"
#include "engines/sampling/stop_matcher.hpp"

namespace tidemill::actors::tinker {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxMessageBytes = 600;
constexpr std::size_t kMaxMetadata = 64;  // entries
constexpr std::size_t kMaxMetadataBytes = 16 << 10U;
constexpr std::size_t kMaxTags = 64;
constexpr std::size_t kMaxLabelBytes = 16 << 10U;  // of all tags and the display name
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxRecipients = 10;
constexpr std::int64_t kMaxSeqId = std::numeric_limits<std::int32_t>::max();

struct KindNames {
  CheckpointKind kind;
  std::string_view segment;
  std::string_view name;
};
constexpr std::array kKinds = std::to_array<KindNames>({
    {CheckpointKind::kTraining, "weights", "training"},
    {CheckpointKind::kSampler, "sampler_weights", "sampler"},
    {CheckpointKind::kExternal, "external_weights", "external"},
});

// Whether `text` can be a part of a path, of URLs and of file names.
bool is_name(std::string_view text, std::string_view more) {
  return !text.empty() && text.size() <= kMaxNameBytes && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-' || more.find(c) != std::string_view::npos;
         });
}

// The fields of one request.
class CallFields {
public:
  explicit CallFields(const Json& body) : fields_(body, "") {}

  JsonFields& fields() { return fields_; }

  std::string required_string(std::string_view name) {
    std::string text = fields_.string(name).value_or("");
    if (text.empty()) {
      fields_.refuse(name, "missing; must be a string that is not empty");
    }
    return text;
  }

  QueueTurn turn() {
    QueueTurn turn;
    turn.model_id = required_string("model_id");
    turn.seq_id = fields_.required_integer("seq_id", {1, kMaxSeqId});
    if (fields_.status().ok()) {
      turn_ = turn;
    }
    return turn;
  }

  Metadata metadata() {
    Metadata out;
    const Json* value = fields_.find("user_metadata");
    if (value == nullptr) {
      return out;
    }
    const Json::Object* object = value->if_object();
    std::size_t bytes = 0;
    for (std::size_t i = 0; object != nullptr && i < object->size(); ++i) {
      const Json::Member& member = (*object)[i];
      if (member.value.if_string() == nullptr) {
        fields_.refuse("user_metadata." + member.name, "must be a string");
        return {};
      }
      bytes += member.name.size() + member.value.if_string()->size();
      out.emplace(member.name, *member.value.if_string());
    }
    if (object == nullptr || out.size() > kMaxMetadata || bytes > kMaxMetadataBytes) {
      fields_.refuse("user_metadata", "must be an object of at most 64 strings and 16 KiB");
    }
    return out;
  }

  std::optional<std::int64_t> ttl() {
    return fields_.integer("ttl_seconds", {kMinTtlSeconds, kMaxTtlSeconds});
  }

  std::optional<CheckpointPath> path(std::string_view name) {
    const std::optional<std::string> text = fields_.string(name);
    if (!text) {
      return std::nullopt;
    }
    Result<CheckpointPath> parsed = parse_checkpoint_path(*text);
    if (!parsed.ok()) {
      fields_.refuse(name, parsed.status().message());
      return std::nullopt;
    }
    return std::move(parsed).value();
  }

  void only_adamw(std::string_view name) {
    const Json* config = fields_.find(name);
    if (config == nullptr) {
      return;
    }
    const Json* type = config->find("type");
    const std::string* text = type == nullptr ? nullptr : type->if_string();
    if (text == nullptr || *text != "adamw") {
      fields_.refuse(std::string(name) + ".type",
                     "must be \"adamw\"; no other optimizer is supported");
    } else if (config->if_object()->size() != 1) {
      fields_.refuse(name, "adamw has no other fields");
    }
  }

  void refuse_if_set(std::string_view name, std::string_view reason) {
    const Json* value = fields_.find(name);
    const bool* flag = value == nullptr ? nullptr : value->if_bool();
    const std::int64_t* number = value == nullptr ? nullptr : value->if_integer();
    const bool is_off = (flag != nullptr && !*flag) || (number != nullptr && *number == 0);
    if (value != nullptr && !is_off) {
      fields_.refuse(name, "not supported: " + std::string(reason));
    }
  }

  std::vector<AgeRecipient> recipients(std::string_view name) {
    std::vector<AgeRecipient> out;
    for (const std::string& text : fields_.strings(name).value_or(std::vector<std::string>())) {
      const Result<AgeRecipient> recipient = parse_age_recipient(text);
      if (!recipient.ok()) {
        fields_.refuse(std::string(name) + "[" + std::to_string(out.size()) + "]",
                       recipient.status().message());
        return {};
      }
      out.push_back(recipient.value());
    }
    if (out.size() > kMaxRecipients) {
      fields_.refuse(name, "has more than 10 entries");
    }
    return out;
  }

  // Keeps the refusal of a member object.
  void take(const JsonFields& member) {
    if (fields_.status().ok() && !member.status().ok()) {
      fields_.refuse(member.status());
      nested_ = member.refused();
    }
  }

  [[nodiscard]] RefusedCall refused() const {
    return {{400, clipped(fields_.status().message(), kMaxMessageBytes),
             nested_.empty() ? fields_.refused() : nested_},
            turn_};
  }

private:
  JsonFields fields_;
  std::string nested_;  // the path of a refused field of a member object
  std::optional<QueueTurn> turn_;
};

// Parses `body` and has `read` fill a call of type T from it.
template <class T, class Read>
CallResult<T> read_call(std::string_view body, Read read) {
  const Result<Json> json = parse_json(body, {.max_depth = kMaxDepth});
  if (!json.ok()) {
    return RefusedCall{{400, clipped(json.status().message(), kMaxMessageBytes)}, std::nullopt};
  }
  CallFields fields(json.value());
  T call;
  read(fields, call);
  if (!fields.fields().status().ok()) {
    return fields.refused();
  }
  return call;
}

LoraSettings read_lora(CallFields& fields) {
  LoraSettings lora;
  const Json* value = fields.fields().find("lora_config");
  if (value == nullptr) {
    fields.fields().refuse("lora_config", "missing; only LoRA adapters can be trained");
    return lora;
  }
  JsonFields members(*value, "", "lora_config.");
  lora.rank = static_cast<std::int32_t>(members.required_integer("rank", {1, kMaxRank}));
  if (const auto seed = members.integer("seed", {})) {
    lora.seed = static_cast<std::uint64_t>(*seed);
  }
  lora.train_attn = members.boolean("train_attn").value_or(true);
  lora.train_mlp = members.boolean("train_mlp").value_or(true);
  lora.train_unembed = members.boolean("train_unembed").value_or(true);
  members.refuse_others({"rank", "seed", "train_attn", "train_mlp", "train_unembed"});
  if (!lora.train_attn && !lora.train_mlp && !lora.train_unembed) {
    members.refuse("train_attn", "one of train_attn, train_mlp and train_unembed must be true");
  }
  fields.take(members);
  return lora;
}

// -- sampling -------------------------------------------------------------------------------------

// Reads the chunks of a prompt.
std::vector<std::int32_t> read_prompt(CallFields& fields, const ModelLimits& model) {
  std::vector<std::int32_t> ids;
  const Json* prompt = fields.fields().find("prompt");
  const Json* chunks = prompt == nullptr ? nullptr : prompt->find("chunks");
  const Json::Array* list = chunks == nullptr ? nullptr : chunks->if_array();
  if (list == nullptr) {
    fields.fields().refuse("prompt.chunks", "missing; must be a list of chunks");
    return ids;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = "prompt.chunks[" + std::to_string(i) + "].";
    JsonFields chunk((*list)[i], "", where);
    const std::string type = chunk.string("type").value_or("encoded_text");
    if (type != "encoded_text") {
      chunk.refuse("type", "the chunk type " + quote(type) + " is not supported, only tokens are");
    } else {
      for (const std::int64_t id : chunk.integers("tokens", {0, model.vocab_size - 1})
                                       .value_or(std::vector<std::int64_t>())) {
        ids.push_back(static_cast<std::int32_t>(id));
      }
      chunk.refuse_others({"type", "tokens"});
    }
    fields.take(chunk);
  }
  if (ids.empty()) {
    fields.fields().refuse("prompt.chunks", "must have at least one token");
  }
  return ids;
}

// A list of stops replaces the model's end tokens; an empty list leaves no stop at all.
void read_stops(JsonFields& params, const ModelLimits& model, engines::RolloutRequest& settings) {
  settings.stop_ids = model.stop_ids;
  const Json* stop = params.find("stop");
  if (stop == nullptr) {
    return;
  }
  settings.stop_ids.clear();
  const Json::Array* list = stop->if_array();
  const bool has_ids = list != nullptr && !list->empty() && (*list)[0].if_integer() != nullptr;
  if (has_ids) {
    for (const std::int64_t id :
         params.integers("stop", {0, model.vocab_size - 1}).value_or(std::vector<std::int64_t>())) {
      settings.stop_ids.push_back(static_cast<std::int32_t>(id));
    }
  } else {
    settings.stop_strings = params.strings("stop").value_or(std::vector<std::string>());
  }
  const auto matcher = engines::StopMatcher::create(settings.stop_strings);
  if (settings.stop_ids.size() > engines::StopMatcher::kMaxStops) {
    params.refuse("stop", "has more than 64 entries");
  } else if (!matcher.ok()) {
    params.refuse("stop", matcher.status().message());
  }
}

void read_sampling(CallFields& fields, const ModelLimits& model, SampleCall& call) {
  const Json* value = fields.fields().find("sampling_params");
  if (value == nullptr) {
    fields.fields().refuse("sampling_params", "missing; must be an object");
    return;
  }
  JsonFields params(*value, "", "sampling_params.");
  engines::SamplingOptions& sampling = call.settings.sampling;
  const double temperature = params.real("temperature", {0.0, 100.0}).value_or(1.0);
  sampling.temperature = static_cast<float>(temperature);
  if (temperature > 0.0 && sampling.temperature < engines::kMinTemperature) {
    params.refuse("temperature", "must be 0 or at least 0.001");
  }
  sampling.top_p = static_cast<float>(params.real("top_p", {0.0, 1.0}).value_or(1.0));
  if (sampling.top_p == 0.0F) {
    params.refuse("top_p", "must be above 0");
  }
  constexpr std::int64_t kMaxTopK = std::numeric_limits<std::int32_t>::max();
  sampling.top_k = static_cast<std::int32_t>(
      std::max<std::int64_t>(params.integer("top_k", {-1, kMaxTopK}).value_or(-1), 0));
  if (const auto seed = params.integer("seed", {std::numeric_limits<std::int64_t>::min()})) {
    call.seed = static_cast<std::uint64_t>(*seed);
  }
  read_stops(params, model, call.settings);
  const auto max_tokens = params.integer("max_tokens", {0, kMaxTopK});
  const std::int64_t room =
      model.max_positions - static_cast<std::int64_t>(call.settings.prompt_ids.size());
  if (room < 1) {
    fields.fields().refuse("prompt", "leaves no room in the context of " +
                                         std::to_string(model.max_positions) + " tokens");
  }
  call.settings.max_new_tokens = static_cast<std::int32_t>(
      std::min(std::max<std::int64_t>(room, 0), max_tokens.value_or(room)));
  if (call.settings.max_new_tokens == 0 && !call.settings.prompt_logprobs) {
    params.refuse("max_tokens", "must be at least 1, unless prompt_logprobs is true");
  }
  params.refuse_others({"temperature", "top_p", "top_k", "seed", "stop", "max_tokens"});
  fields.take(params);
}

void read_logprobs(CallFields& fields, SampleCall& call) {
  JsonFields& all = fields.fields();
  engines::RolloutRequest& settings = call.settings;
  const IntegerRange range{0, engines::kMaxTopLogprobs};
  settings.prompt_logprobs = all.boolean("prompt_logprobs").value_or(false);
  settings.prompt_top_logprobs =
      static_cast<std::int32_t>(all.integer("topk_prompt_logprobs", range).value_or(0));
  settings.top_logprobs =
      static_cast<std::int32_t>(all.integer("topk_sample_logprobs", range).value_or(0));
  const auto last = static_cast<std::int64_t>(settings.prompt_ids.size()) - 1;
  if (all.has("prompt_logprobs_last_n")) {
    const auto count = all.integer("prompt_logprobs_last_n", {1, std::max<std::int64_t>(last, 1)});
    call.prompt_logprobs_last_n = static_cast<std::size_t>(count.value_or(1));
    if (!settings.prompt_logprobs) {
      all.refuse("prompt_logprobs_last_n", "needs prompt_logprobs");
    }
  }
}

}  // namespace

std::string_view kind_segment(CheckpointKind kind) noexcept {
  return kKinds[static_cast<std::size_t>(kind)].segment;
}

std::string_view kind_name(CheckpointKind kind) noexcept {
  return kKinds[static_cast<std::size_t>(kind)].name;
}

std::string to_text(const CheckpointPath& path) {
  return std::string(kScheme) + path.run_id + "/" + std::string(kind_segment(path.kind)) + "/" +
         path.name;
}

Result<CheckpointPath> parse_checkpoint_path(std::string_view text) {
  const auto refused = [] {
    return invalid_argument(
        "must be tinker://RUN/KIND/NAME, where KIND is weights, "
        "sampler_weights or external_weights");
  };
  if (!text.starts_with(kScheme)) {
    return refused();
  }
  text.remove_prefix(kScheme.size());
  const std::size_t first = text.find('/');
  const std::size_t second = first == std::string_view::npos ? first : text.find('/', first + 1);
  if (second == std::string_view::npos) {
    return refused();
  }
  const std::string_view run = text.substr(0, first);
  const std::string_view segment = text.substr(first + 1, second - first - 1);
  const std::string_view name = text.substr(second + 1);
  const auto* const kind = std::find_if(
      kKinds.begin(), kKinds.end(), [&](const KindNames& one) { return one.segment == segment; });
  if (!is_name(run, ":") || kind == kKinds.end() || !is_name(name, "")) {
    return refused();
  }
  return CheckpointPath{std::string(run), kind->kind, std::string(name)};
}

CallResult<CreateSession> read_create_session(std::string_view body) {
  return read_call<CreateSession>(body, [](CallFields& fields, CreateSession& call) {
    call.tags = fields.fields().strings("tags").value_or(std::vector<std::string>());
    call.user_metadata = fields.metadata();
    call.display_name = fields.fields().string("display_name").value_or("");
    std::size_t bytes = call.display_name.size();
    for (const std::string& tag : call.tags) {
      bytes += tag.size();
    }
    if (call.tags.size() > kMaxTags || bytes > kMaxLabelBytes) {
      fields.fields().refuse("tags", "at most " + std::to_string(kMaxTags) +
                                         " tags, which have at most " +
                                         std::to_string(kMaxLabelBytes) +
                                         " bytes together with display_name, are kept");
    }
    fields.fields().refuse_others(
        {"tags", "user_metadata", "display_name", "sdk_version", "project_id", "type"});
  });
}

CallResult<CreateModel> read_create_model(std::string_view body) {
  return read_call<CreateModel>(body, [](CallFields& fields, CreateModel& call) {
    call.session_id = fields.required_string("session_id");
    call.model_seq_id = fields.fields().required_integer("model_seq_id", {0, kMaxSeqId});
    call.base_model = fields.required_string("base_model");
    call.lora = read_lora(fields);
    call.user_metadata = fields.metadata();
    fields.only_adamw("optimizer_config");
    fields.fields().refuse_others({"session_id", "model_seq_id", "base_model", "lora_config",
                                   "user_metadata", "optimizer_config", "type"});
  });
}

CallResult<LoadWeights> read_load_weights(std::string_view body) {
  return read_call<LoadWeights>(body, [](CallFields& fields, LoadWeights& call) {
    if (fields.fields().has("model_id")) {
      call.turn = fields.turn();
    } else {
      call.session_id = fields.required_string("session_id");
      call.model_seq_id = fields.fields().required_integer("model_seq_id", {0, kMaxSeqId});
    }
    call.base_model = fields.fields().string("base_model").value_or("");
    call.user_metadata = fields.metadata();
    if (!fields.fields().has("path")) {
      fields.fields().refuse("path", "missing; must be the path of a checkpoint");
    }
    call.path = fields.path("path").value_or(CheckpointPath());
    if (call.path.kind == CheckpointKind::kExternal) {
      fields.fields().refuse("path", "external weights cannot be loaded");
    }
    call.with_optimizer = fields.fields().boolean("optimizer").value_or(false);
    fields.only_adamw("optimizer_config");
    fields.refuse_if_set("weights_access_token", "the server has no accounts");
    fields.fields().refuse_others({"model_id", "seq_id", "session_id", "model_seq_id", "base_model",
                                   "user_metadata", "path", "optimizer", "optimizer_config",
                                   "weights_access_token", "type"});
  });
}

CallResult<SaveWeights> read_save_weights(CheckpointKind kind, std::string_view body) {
  return read_call<SaveWeights>(body, [kind](CallFields& fields, SaveWeights& call) {
    JsonFields& all = fields.fields();
    call.kind = kind;
    call.turn = fields.turn();
    call.name = all.string("path");
    if (call.name && !is_name(*call.name, "")) {
      all.refuse("path", "must have up to 128 letters, digits and ._- and no dot at the start");
    }
    if (kind == CheckpointKind::kSampler) {
      call.sampling_seq_id = all.integer("sampling_session_seq_id", {0, kMaxSeqId});
      if (all.string("kind").value_or("snapshot") != "snapshot") {
        all.refuse("kind", "must be \"snapshot\"; weights in flight are not supported");
      }
    }
    if (!call.name && !call.sampling_seq_id) {
      all.refuse("path", "missing; must be a name");
    }
    call.ttl_seconds = fields.ttl();
    call.overwrite = all.boolean("overwrite").value_or(false);
    call.user_metadata = fields.metadata();
    call.recipients = fields.recipients("age_encryption_recipients");
    switch (kind) {
      case CheckpointKind::kTraining:
        all.refuse_others(
            {"model_id", "seq_id", "path", "ttl_seconds", "user_metadata", "overwrite", "type"});
        break;
      case CheckpointKind::kSampler:
        all.refuse_others({"model_id", "seq_id", "path", "ttl_seconds", "user_metadata", "kind",
                           "sampling_session_seq_id", "type"});
        break;
      case CheckpointKind::kExternal:
        all.refuse_others(
            {"model_id", "seq_id", "path", "ttl_seconds", "age_encryption_recipients", "type"});
        break;
    }
  });
}

CallResult<OptimStepCall> read_optim_step(std::string_view body) {
  return read_call<OptimStepCall>(body, [](CallFields& fields, OptimStepCall& call) {
    call.turn = fields.turn();
    fields.refuse_if_set("optimizer_params", "the optimizer is adamw; use adam_params");
    const Json* value = fields.fields().find("adam_params");
    if (value == nullptr) {
      fields.fields().refuse("adam_params", "missing; must be an object");
      return;
    }
    JsonFields params(*value, "", "adam_params.");
    const double below_one = std::nextafter(1.0, 0.0);
    // Values beyond these would only ruin the weights. A run's options have the same ranges of the
    // rate and the decay.
    call.step.learning_rate = params.real("learning_rate", {0.0, 10.0}).value_or(1e-4);
    call.step.beta1 = params.real("beta1", {0.0, below_one}).value_or(0.9);
    call.step.beta2 = params.real("beta2", {0.0, below_one}).value_or(0.95);
    call.step.epsilon = params.real("eps", {1e-30, 1.0}).value_or(1e-12);
    call.step.weight_decay = params.real("weight_decay", {0.0, 10.0}).value_or(0.0);
    call.step.max_grad_norm = params.real("grad_clip_norm", {0.0}).value_or(0.0);
    params.refuse_others(
        {"learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"});
    fields.take(params);
    fields.fields().refuse_others(
        {"model_id", "seq_id", "adam_params", "optimizer_params", "type"});
  });
}

CallResult<CreateSamplingSession> read_create_sampling_session(std::string_view body) {
  return read_call<CreateSamplingSession>(
      body, [](CallFields& fields, CreateSamplingSession& call) {
        call.session_id = fields.required_string("session_id");
        call.sampling_seq_id =
            fields.fields().required_integer("sampling_session_seq_id", {0, kMaxSeqId});
        call.base_model = fields.fields().string("base_model").value_or("");
        call.path = fields.path("model_path");
        if (call.base_model.empty() && !fields.fields().has("model_path")) {
          fields.fields().refuse("base_model", "missing; must be given if there is no model_path");
        }
        fields.fields().refuse_others(
            {"session_id", "sampling_session_seq_id", "base_model", "model_path", "type"});
      });
}

CallResult<SampleCall> read_sample(std::string_view body, const ModelLimits& model) {
  return read_call<SampleCall>(body, [&model](CallFields& fields, SampleCall& call) {
    JsonFields& all = fields.fields();
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    call.sampling_session_id = fields.required_string("sampling_session_id");
    call.seq_id = all.required_integer("seq_id", {0, kMax});
    call.num_samples =
        static_cast<std::int32_t>(all.integer("num_samples", {1, kMaxSamples}).value_or(1));
    call.settings.prompt_ids = read_prompt(fields, model);
    read_logprobs(fields, call);
    read_sampling(fields, model, call);
    fields.refuse_if_set("target_prompt_logprobs", "use prompt_logprobs or topk_prompt_logprobs");
    fields.refuse_if_set("prompt_alt_tokens_k", "use topk_prompt_logprobs");
    fields.refuse_if_set("record_stability_info", "the loss stable_reinforce is not supported");
    fields.refuse_if_set("base_model", "use sampling_session_id");
    fields.refuse_if_set("model_path", "use sampling_session_id");
    all.refuse_others({"num_samples", "prompt", "sampling_params", "base_model", "model_path",
                       "sampling_session_id", "seq_id", "prompt_logprobs", "topk_prompt_logprobs",
                       "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k",
                       "prompt_logprobs_last_n", "record_stability_info", "type"});
  });
}

CallResult<RetrieveFutures> read_retrieve_futures(std::string_view body) {
  return read_call<RetrieveFutures>(body, [](CallFields& fields, RetrieveFutures& call) {
    JsonFields& all = fields.fields();
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    if (const Json* value = all.find("target")) {
      JsonFields target(*value, "", "target.");
      call.sampling_session_id = target.string("sampling_session_id").value_or("");
      call.cloned_sampler_id = target.integer("cloned_sampler_id", {0, kMax}).value_or(0);
      if (target.string("type").value_or("sampling_session") != "sampling_session") {
        target.refuse("type", "must be \"sampling_session\"");
      }
      target.refuse_others({"type", "sampling_session_id", "cloned_sampler_id"});
      fields.take(target);
    } else {
      all.refuse("target", "missing; must be an object");
    }
    call.previous_cursor = all.integer("prev_cursor", {0, kMax}).value_or(0);
    call.timeout_seconds = all.real("timeout", {0.0, 3600.0});
    call.retrieved = all.strings("retrieved_request_ids").value_or(std::vector<std::string>());
    all.refuse_others({"target", "prev_cursor", "timeout", "retrieved_request_ids"});
  });
}

CallResult<std::string> read_name(std::string_view name, std::string_view body) {
  return read_call<std::string>(body, [name](CallFields& fields, std::string& call) {
    call = fields.required_string(name);
    [[maybe_unused]] const auto allow = fields.fields().boolean("allow_metadata_only");
    fields.fields().refuse_others({name, "type", "allow_metadata_only"});
  });
}

CallResult<std::optional<std::int64_t>> read_ttl(std::string_view body) {
  return read_call<std::optional<std::int64_t>>(
      body, [](CallFields& fields, std::optional<std::int64_t>& call) {
        call = fields.ttl();
        fields.fields().refuse_others({"ttl_seconds"});
      });
}

}  // namespace tidemill::actors::tinker
