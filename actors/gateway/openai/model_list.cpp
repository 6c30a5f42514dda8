// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/model_list.hpp"

#include <utility>

#include "actors/device/job_views.hpp"
#include "actors/gateway/openai/generation_call.hpp"
#include "actors/gateway/tinker/calls.hpp"
#include "base/json/fields.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::actors::openai {
namespace {

constexpr std::size_t kMaxAdapterName = 256;  // bytes
// The longest text to tokenize, whose ids are written as JSON. Units: bytes.
constexpr std::size_t kMaxTokenizedBytes = std::size_t{2} << 20U;

// `adapter` is null for the model itself.
Json entry(const ServedModel& model, const engines::LoadedAdapter* adapter) {
  const bool has_time = adapter != nullptr && adapter->created != 0;
  return Json::Object{{"id", adapter != nullptr ? adapter->name : model.id},
                      {"object", "model"},
                      {"created", has_time ? adapter->created : model.created},
                      {"owned_by", "tidemill"},
                      {"root", model.id},
                      {"parent", adapter != nullptr ? Json(model.id) : Json()},
                      {"max_model_len", model.max_positions}};
}

ApiError refusal(const JsonFields& fields) {
  return {400, fields.status().message(), fields.refused()};
}

}  // namespace

Json model_list(const ServedModel& model, const AdapterList& adapters) {
  Json::Array data{entry(model, nullptr)};
  for (const engines::LoadedAdapter& adapter : adapters.adapters) {
    data.push_back(entry(model, &adapter));
  }
  return Json::Object{{"object", "list"}, {"data", std::move(data)}};
}

std::optional<Json> model_entry(const ServedModel& model, const AdapterList& adapters,
                                std::string_view id) {
  if (id == model.id) {
    return entry(model, nullptr);
  }
  for (const engines::LoadedAdapter& adapter : adapters.adapters) {
    if (adapter.name == id) {
      return entry(model, &adapter);
    }
  }
  return std::nullopt;
}

Json deleted_model(const std::string& name) {
  return Json::Object{{"id", name}, {"object", "model"}, {"deleted", true}};
}

ApiError model_not_found(const std::string& name, const ServedModel& served) {
  return {404,
          "the model " + quote(name) + " does not exist; the server serves " + quote(served.id),
          "model", "model_not_found"};
}

ApiResult<Json> tokenize(std::string_view body, const ServedModel& model, const std::string& now) {
  const auto json = parse_json(body, {.max_depth = 32, .max_values = kMaxChatValues});
  if (!json.ok()) {
    return not_json(json.status());
  }
  JsonFields fields(json.value(), "");
  std::vector<std::int32_t> ids;
  if (fields.has("messages")) {
    // The prompt of a chat request with the same members.
    Json::Object chat;
    for (const Json::Member& member : *json.value().if_object()) {
      chat.push_back(member);
    }
    if (!fields.has("model")) {
      chat.push_back({"model", model.id});
    }
    auto call = read_generation(GenerationForm::kChat, Json(std::move(chat)), model, now);
    if (auto* error = std::get_if<ApiError>(&call)) {
      return std::move(*error);
    }
    ids = std::move(std::get<GenerationCall>(call).prompts.front().ids);
  } else {
    fields.refuse_others({"model", "prompt", "add_special_tokens"});
    (void)fields.string("model");
    const auto text = fields.string("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    if (!text.has_value()) {
      fields.refuse("prompt", "missing; must be text, or give messages");
    }
    if (text.has_value() && text->size() > kMaxTokenizedBytes) {
      fields.refuse("prompt", "a text to tokenize has at most " +
                                  std::to_string(kMaxTokenizedBytes) + " bytes");
    }
    if (!fields.status().ok()) {
      return refusal(fields);
    }
    auto encoded = model.tokenizer.encode(
        *text, special ? engines::AddSpecialTokens::kYes : engines::AddSpecialTokens::kNo);
    if (!encoded.ok()) {
      return ApiError{400, clipped("prompt: " + encoded.status().message(), 600), "prompt"};
    }
    ids = std::move(encoded).value();
  }
  Json::Array tokens;
  for (const std::int32_t id : ids) {
    tokens.emplace_back(int{id});
  }
  return Json(Json::Object{{"count", static_cast<std::int64_t>(ids.size())},
                           {"max_model_len", model.max_positions},
                           {"tokens", std::move(tokens)}});
}

ApiResult<Json> detokenize(std::string_view body, const ServedModel& model) {
  const auto json = parse_json(body, {.max_depth = 8});
  if (!json.ok()) {
    return not_json(json.status());
  }
  JsonFields fields(json.value(), "");
  fields.refuse_others({"model", "tokens"});
  (void)fields.string("model");
  const auto ids = fields.integers("tokens", {0, model.vocab_size - 1});
  if (!ids.has_value()) {
    fields.refuse("tokens", "missing; must be a list of token ids");
  }
  if (!fields.status().ok()) {
    return refusal(fields);
  }
  const std::vector<std::int32_t> tokens(ids->begin(), ids->end());
  return Json(
      Json::Object{{"prompt", model.tokenizer.decode(tokens, engines::SpecialTokenText::kKeep)}});
}

ApiResult<AdapterRequest> parse_adapter_request(std::string_view body, bool with_path) {
  const auto json = parse_json(body, {.max_depth = 8});
  if (!json.ok()) {
    return not_json(json.status());
  }
  JsonFields fields(json.value(), "");
  fields.refuse_others({"lora_name", with_path ? "lora_path" : "lora_name"});
  AdapterRequest request;
  request.action = with_path ? AdapterAction::kLoad : AdapterAction::kUnload;
  request.name = fields.string("lora_name").value_or("");
  request.path = with_path ? fields.string("lora_path").value_or("") : "";
  if (request.name.empty()) {
    fields.refuse("lora_name", "missing; must be the name of an adapter");
  } else if (is_private_adapter(request.name) || request.name.starts_with(tinker::kScheme)) {
    fields.refuse("lora_name", "is the name of an adapter of the server");
  } else if (request.name.size() > kMaxAdapterName || has_control(request.name)) {
    fields.refuse("lora_name", "must have at most " + std::to_string(kMaxAdapterName) +
                                   " bytes and no control characters");
  }
  if (with_path && request.path.empty()) {
    fields.refuse("lora_path", "missing; must be the directory of an adapter");
  }
  if (!fields.status().ok()) {
    return refusal(fields);
  }
  return request;
}

}  // namespace tidemill::actors::openai
