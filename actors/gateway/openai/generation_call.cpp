// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/generation_call.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "actors/gateway/openai/constraints.hpp"
#include "base/json/fields.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "engines/chat/conversation.hpp"
#include "engines/sampling/sampler.hpp"
#include "engines/sampling/stop_matcher.hpp"

namespace tidemill::actors::openai {
namespace {

using engines::SamplingOptions;
using engines::chat::ChatRequest;
using engines::chat::Ending;

constexpr std::size_t kMaxDepth = 32;
// Limits of one request, so that a small body cannot take much memory or time.
constexpr std::size_t kMaxListed = 1024;        // entries of logit_bias and stop_token_ids
constexpr std::int64_t kMaxTokens = 4'000'000;  // of all prompts and responses
constexpr std::int64_t kMaxScores = 1'000'000;  // log-probabilities, alternatives included
constexpr std::size_t kMaxEchoedBytes = 16U << 20U;
// Templates and tokenizers may quote the request in their messages.
constexpr std::size_t kMaxMessageBytes = 600;
constexpr std::int32_t kDefaultMaxTokens = 16;  // of completions, as OpenAI's API

constexpr const char* kContextCode = "context_length_exceeded";
constexpr std::string_view kIdentity = "it identifies the caller, who is known by the API key";
constexpr std::string_view kOldTools = "use tools and tool_choice";
constexpr std::string_view kUseFormat = "use response_format";

// The fields of both forms.
constexpr std::array kCommonFields = std::to_array<FieldInfo>({
    {"model"},
    {"n"},
    {"stream"},
    {"stream_options"},
    {"stop"},
    {"stop_token_ids"},
    {"ignore_eos"},
    {"seed"},
    {"temperature"},
    {"top_p"},
    {"top_k"},
    {"min_p"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"repetition_penalty"},
    {"logit_bias"},
    {"logprobs"},
    {"max_tokens"},
    {"response_format"},
    {"structured_outputs", FieldUse::kRefused, kUseFormat},
    {"guided_json", FieldUse::kRefused, kUseFormat},
    {"guided_regex", FieldUse::kRefused, kUseFormat},
    {"guided_choice", FieldUse::kRefused, kUseFormat},
    {"guided_grammar", FieldUse::kRefused, kUseFormat},
    {"min_tokens", FieldUse::kRefused,
     "a response may end at any token; ignore_eos ignores the end tokens"},
    {"prompt_logprobs", FieldUse::kRefused, "use echo and logprobs of /v1/completions"},
    {"lora_request", FieldUse::kRefused, "the field model names the adapter"},
    {"cache_salt"},
    {"user", FieldUse::kNoEffect, kIdentity},
});

constexpr std::array kCompletionFields = std::to_array<FieldInfo>({
    {"prompt"},
    {"echo"},
    {"best_of"},
    {"suffix", FieldUse::kRefused, "text cannot be inserted before a suffix"},
});

constexpr std::array kChatFields = std::to_array<FieldInfo>({
    {"messages"},
    {"top_logprobs"},
    {"max_completion_tokens"},
    {"add_generation_prompt"},
    {"continue_final_message"},
    {"chat_template_kwargs"},
    {"safety_identifier", FieldUse::kNoEffect, kIdentity},
    {"metadata", FieldUse::kNoEffect, "responses are not stored"},
    {"store", FieldUse::kRefused, "responses are not stored", {"false"}},
    {"tools"},
    {"tool_choice"},
    {"parallel_tool_calls"},
    {"functions", FieldUse::kRefused, kOldTools},
    {"function_call", FieldUse::kRefused, kOldTools},
    {"audio", FieldUse::kRefused, "the model generates text"},
    {"modalities", FieldUse::kRefused, "the model generates text", {R"(["text"])"}},
    {"prediction", FieldUse::kRefused, "predicted outputs are not supported"},
    {"reasoning_effort", FieldUse::kRefused,
     "set the variables of the chat template with chat_template_kwargs"},
    {"service_tier",
     FieldUse::kRefused,
     "there are no service tiers",
     {R"("auto")", R"("default")"}},
    {"web_search_options", FieldUse::kRefused, "the server does not search the web"},
});

template <std::size_t A, std::size_t B>
constexpr std::array<FieldInfo, A + B> joined(const std::array<FieldInfo, A>& first,
                                              const std::array<FieldInfo, B>& second) {
  std::array<FieldInfo, A + B> out{};
  std::copy(second.begin(), second.end(), std::copy(first.begin(), first.end(), out.begin()));
  return out;
}

bool is_accepted(const FieldInfo& rule, const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the end of the line
  return std::find(rule.accepted.begin(), rule.accepted.end(), text) != rule.accepted.end();
}

// Reads the fields of one request. The first refusal is kept.
class CallReader {
public:
  CallReader(GenerationForm form, const Json& body, const ServedModel& model,
             const std::string& now)
      : body_(body), fields_(body, ""), model_(model), now_(now) {
    call_.form = form;
  }

  ApiResult<GenerationCall> read() {
    check_names();
    call_.model = fields_.string("model").value_or("");
    if (call_.model.empty()) {
      fields_.refuse("model", "missing; must be the name of a model");
    }
    read_shape();
    read_sampling();
    read_bias();
    read_stops();
    read_logprobs();
    read_length();
    if (fields_.status().ok()) {
      call_.form == GenerationForm::kChat ? read_messages() : read_prompts();
    }
    read_format();
    check_room();
    if (!fields_.status().ok()) {
      return ApiError{400, clipped(fields_.status().message(), kMaxMessageBytes),
                      nested_.empty() ? fields_.refused() : nested_, code_};
    }
    return std::move(call_);
  }

private:
  void check_names() {
    const Json::Object* object = body_.if_object();
    if (object == nullptr) {
      return;  // `fields_` has refused it
    }
    const auto rules = generation_fields(call_.form);
    for (const Json::Member& member : *object) {
      const auto rule = std::find_if(rules.begin(), rules.end(),
                                     [&](const FieldInfo& one) { return one.name == member.name; });
      if (rule == rules.end()) {
        fields_.refuse(member.name, "unknown field");
      } else if (rule->use == FieldUse::kRefused && !member.value.is_null() &&
                 !is_accepted(*rule, member.value)) {
        fields_.refuse(member.name, "not supported: " + std::string(rule->remark));
      }
    }
  }

  void read_shape() {
    call_.num_per_prompt =
        static_cast<std::int32_t>(fields_.integer("n", {1, kMaxChoices}).value_or(1));
    if (call_.form == GenerationForm::kCompletion) {
      const auto best_of = fields_.integer("best_of", {1, kMaxChoices});
      if (best_of.value_or(call_.num_per_prompt) != call_.num_per_prompt) {
        fields_.refuse("best_of", "must be equal to n");
      }
      call_.echo = fields_.boolean("echo").value_or(false);
    }
    if (auto salt = fields_.string("cache_salt")) {
      if (salt->empty() || salt->size() > kMaxSaltBytes) {
        fields_.refuse("cache_salt", "must have 1 to " + std::to_string(kMaxSaltBytes) + " bytes");
      }
      call_.settings.cache_salt = std::move(*salt);
    }
    call_.stream = fields_.boolean("stream").value_or(false);
    if (const Json* options = fields_.find("stream_options")) {
      JsonFields stream(*options, "", "stream_options.");
      call_.include_usage = stream.boolean("include_usage").value_or(false);
      if (!call_.stream) {
        fields_.refuse("stream_options", "needs stream");
      }
      // OpenAI's API pads events so that their sizes tell less. This server does not.
      if (stream.boolean("include_obfuscation").value_or(false)) {
        stream.refuse("include_obfuscation", "events are not padded; only false is supported");
      }
      stream.refuse_others({"include_usage", "include_obfuscation"});
      take(stream);
    }
  }

  void read_format() {
    const Json* format = fields_.find("response_format");
    if (format == nullptr || !fields_.status().ok()) {
      return;
    }
    std::string refused;
    const auto constraint = format_constraint(*format, model_.constraints.get(), refused);
    if (constraint.ok() && constraint.value() != nullptr && !call_.tools.empty()) {
      fields_.refuse("response_format", "excludes tools, unless tool_choice is \"none\"");
      return;
    }
    take(constraint, refused);
  }

  // Keeps a constraint, or the refusal of the member at `refused`.
  void take(const ConstraintResult& constraint, const std::string& refused) {
    if (constraint.ok() && constraint.value() != nullptr) {
      call_.settings.constraint = constraint.value();
    } else if (!constraint.ok() && fields_.status().ok()) {
      fields_.refuse(constraint.status());
      nested_ = refused;
    }
  }

  // Keeps the refusal of a member object.
  void take(const JsonFields& member) {
    if (fields_.status().ok() && !member.status().ok()) {
      fields_.refuse(member.status());
      nested_ = member.refused();
    }
  }

  void read_sampling() {
    SamplingOptions& sampling = call_.settings.sampling;
    sampling = model_.sampling;
    const auto set = [&](float& option, const char* name, RealRange range) {
      const auto value = fields_.real(name, range);
      option = value.has_value() ? static_cast<float>(*value) : option;
      return value;
    };
    const auto temperature = set(sampling.temperature, "temperature", {0.0, 2.0});
    // A float may round it to 0.
    if (temperature.value_or(0.0) > 0.0 && sampling.temperature < engines::kMinTemperature) {
      fields_.refuse("temperature", "must be 0 or at least 0.001");
    }
    set(sampling.top_p, "top_p", {0.0, 1.0});
    if (sampling.top_p <= 0.0F) {
      fields_.refuse("top_p", "must be greater than 0");
    }
    set(sampling.min_p, "min_p", {0.0, 1.0});
    set(sampling.presence_penalty, "presence_penalty", {-2.0, 2.0});
    set(sampling.frequency_penalty, "frequency_penalty", {-2.0, 2.0});
    set(sampling.repetition_penalty, "repetition_penalty", {0.01, 100.0});
    const auto top_k = fields_.integer("top_k", {-1, std::numeric_limits<std::int32_t>::max()});
    if (top_k.has_value()) {
      sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(*top_k, 0));
    }
    if (const auto seed = fields_.integer("seed", {std::numeric_limits<std::int64_t>::min()})) {
      call_.seed = static_cast<std::uint64_t>(*seed);
    }
  }

  void read_bias() {
    const Json* bias = fields_.find("logit_bias");
    if (bias == nullptr) {
      return;
    }
    if (bias->if_object() == nullptr || bias->if_object()->size() > kMaxListed) {
      fields_.refuse("logit_bias", "must be an object of at most " + std::to_string(kMaxListed) +
                                       " token ids and numbers");
      return;
    }
    for (const Json::Member& member : *bias->if_object()) {
      std::int32_t token = -1;
      const char* end = member.name.data() + member.name.size();
      const auto parsed = std::from_chars(member.name.data(), end, token);
      // The only spelling of a number, so that no token occurs twice.
      if (parsed.ec != std::errc() || parsed.ptr != end || token < 0 ||
          token >= model_.vocab_size || std::to_string(token) != member.name) {
        fields_.refuse("logit_bias", quote(member.name) + " is not a token below " +
                                         std::to_string(model_.vocab_size));
        return;
      }
      const auto value = member.value.number();
      if (!value || *value < -100.0 || *value > 100.0) {
        fields_.refuse("logit_bias", "values must be numbers from -100 to 100");
        return;
      }
      call_.settings.sampling.logit_bias.emplace_back(token, static_cast<float>(*value));
    }
  }

  void read_stops() {
    call_.settings.stop_strings = fields_.strings("stop").value_or(std::vector<std::string>());
    if (const auto made = engines::StopMatcher::create(call_.settings.stop_strings); !made.ok()) {
      fields_.refuse("stop", made.status().message());
    }
    const auto ids = fields_.integers("stop_token_ids", {0, model_.vocab_size - 1});
    if (ids.has_value() && ids->size() > kMaxListed) {
      fields_.refuse("stop_token_ids", "at most " + std::to_string(kMaxListed) + " ids");
      return;
    }
    for (const std::int64_t id : ids.value_or(std::vector<std::int64_t>())) {
      call_.settings.stop_ids.push_back(static_cast<std::int32_t>(id));
    }
    if (!fields_.boolean("ignore_eos").value_or(false)) {
      call_.settings.stop_ids.insert(call_.settings.stop_ids.end(), model_.stop_ids.begin(),
                                     model_.stop_ids.end());
    }
  }

  void read_logprobs() {
    std::optional<std::int64_t> top;
    if (call_.form == GenerationForm::kChat) {
      call_.logprobs = fields_.boolean("logprobs").value_or(false);
      top = fields_.integer("top_logprobs", {0, kMaxAlternatives});
      if (top.value_or(0) > 0 && !call_.logprobs) {
        fields_.refuse("top_logprobs", "needs logprobs");
      }
    } else {
      top = fields_.integer("logprobs", {0, kMaxAlternatives});
      call_.logprobs = top.has_value();
    }
    if (top.value_or(0) > model_.vocab_size) {
      fields_.refuse("logprobs", "more alternatives than tokens");
    }
    call_.settings.top_logprobs = static_cast<std::int32_t>(top.value_or(0));
    if (call_.logprobs && call_.echo) {
      call_.settings.prompt_logprobs = true;
      call_.settings.prompt_top_logprobs = call_.settings.top_logprobs;
    }
  }

  std::optional<std::int64_t> read_max_tokens(const char* field) {
    constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
    const auto wanted = fields_.integer(field, {call_.echo ? 0 : 1, kAny});
    if (wanted.value_or(0) > model_.max_positions) {
      code_ = kContextCode;
      fields_.refuse(field, std::to_string(*wanted) + " tokens exceed the context of " +
                                std::to_string(model_.max_positions) + " tokens");
    }
    return wanted;
  }

  void read_length() {
    const auto max_tokens = read_max_tokens("max_tokens");
    std::optional<std::int64_t> limit = max_tokens;
    if (call_.form == GenerationForm::kChat) {
      limit = read_max_tokens("max_completion_tokens");
      if (limit.has_value() && max_tokens.has_value() && *limit != *max_tokens) {
        fields_.refuse("max_tokens", "differs from max_completion_tokens");
      }
      limit = limit.has_value() ? limit : max_tokens;
    } else if (!limit.has_value()) {
      limit = kDefaultMaxTokens;
    }
    if (limit.has_value()) {
      call_.requested_max_tokens = static_cast<std::int32_t>(*limit);
    }
  }

  // -- prompts -----------------------------------------------------------------------------------

  // Refuses a prompt of `tokens` tokens, or of more unless `is_exact`, that leaves no room in the
  // context for its response. Returns whether it fits.
  bool check_length(const char* field, std::int64_t tokens, bool is_exact = true) {
    const std::int64_t wanted = call_.requested_max_tokens.value_or(1);
    if (tokens + wanted <= model_.max_positions) {
      return true;
    }
    code_ = kContextCode;
    fields_.refuse(field, (is_exact ? "" : "at least ") + std::to_string(tokens) + " tokens and " +
                              std::to_string(wanted) + " new tokens exceed the context of " +
                              std::to_string(model_.max_positions) + " tokens");
    return false;
  }

  // Adds the prompt `text`. Encodes no text that is surely too long, and not much more of another
  // one than the context may hold.
  void add_encoded(const char* field, std::string text, engines::AddSpecialTokens special) {
    const engines::Tokenizer& tokenizer = model_.tokenizer;
    const auto least = static_cast<std::int64_t>(tokenizer.least_tokens(text));
    if (least > model_.max_positions) {
      check_length(field, least, false);
      return;
    }
    // Up to twice the context, the message has the exact number.
    const auto most = static_cast<std::size_t>(2 * model_.max_positions);
    auto ids = tokenizer.encode_at_most(text, special, most);
    if (!ids.ok()) {
      fields_.refuse(field, ids.status().message());
      return;
    }
    const std::size_t size = ids.value().size();
    if (check_length(field, static_cast<std::int64_t>(size), size <= most)) {
      call_.prompts.push_back({std::move(ids).value(), std::move(text)});
    }
  }

  void add_ids(const Json::Array& items) {
    if (!check_length("prompt", static_cast<std::int64_t>(items.size()))) {
      return;
    }
    Prompt prompt;
    for (const Json& item : items) {
      const std::int64_t* id = item.if_integer();
      if (id == nullptr || *id < 0 || *id >= model_.vocab_size) {
        fields_.refuse("prompt",
                       "token ids must be integers below " + std::to_string(model_.vocab_size));
        return;
      }
      prompt.ids.push_back(static_cast<std::int32_t>(*id));
    }
    call_.prompts.push_back(std::move(prompt));
  }

  void read_prompts() {
    const Json* prompt = fields_.find("prompt");
    const Json::Array* items = prompt == nullptr ? nullptr : prompt->if_array();
    if (prompt != nullptr && prompt->if_string() != nullptr) {
      add_encoded("prompt", *prompt->if_string(), engines::AddSpecialTokens::kYes);
    } else if (items != nullptr && !items->empty() && items->front().if_integer() != nullptr) {
      add_ids(*items);
    } else if (items != nullptr) {
      if (static_cast<std::int64_t>(items->size()) * call_.num_per_prompt > kMaxChoices) {
        fields_.refuse("n", "prompts times n is more than " + std::to_string(kMaxChoices));
        return;
      }
      for (const Json& item : *items) {
        if (item.if_string() != nullptr) {
          add_encoded("prompt", *item.if_string(), engines::AddSpecialTokens::kYes);
        } else if (item.if_array() != nullptr) {
          add_ids(*item.if_array());
        } else {
          fields_.refuse("prompt", "must be text, a list of texts, token ids, or a list of these");
        }
        if (!fields_.status().ok()) {
          return;
        }
      }
    }
    if (call_.prompts.empty()) {
      fields_.refuse("prompt",
                     "missing; must be text, a list of texts, token ids, or a list of "
                     "lists of token ids");
    }
  }

  // Refuses parts other than text, which a template would render as the text of their JSON.
  void check_content(const Json& message, std::size_t index) {
    const std::string where = "messages[" + std::to_string(index) + "]";
    const Json* content = message.find("content");
    if (message.if_object() == nullptr || message.find("role") == nullptr ||
        message.find("role")->if_string() == nullptr) {
      fields_.refuse(where, "must be an object with a role");
      return;
    }
    if (content == nullptr || content->is_null() || content->if_string() != nullptr) {
      return;
    }
    const Json::Array* parts = content->if_array();
    const bool all_text =
        parts != nullptr && std::all_of(parts->begin(), parts->end(), [](const Json& part) {
          const Json* type = part.find("type");
          const Json* text = part.find("text");
          return type != nullptr && type->if_string() != nullptr && *type->if_string() == "text" &&
                 text != nullptr && text->if_string() != nullptr;
        });
    if (!all_text) {
      fields_.refuse(where + ".content", "must be text, or a list of parts of type \"text\"");
    }
  }

  void read_messages() {
    if (!model_.chat.has_value()) {
      fields_.refuse(
          "messages",
          "the model has no chat template; use /v1/completions, or add chat_template.jinja to "
          "the model's directory and restart the server");
      return;
    }
    const Json* messages = fields_.find("messages");
    const Json::Array* items = messages == nullptr ? nullptr : messages->if_array();
    if (items == nullptr || items->empty()) {
      fields_.refuse("messages", "must be a list of at least one message");
      return;
    }
    // Each message becomes a token at least, so more of them cannot fit.
    if (static_cast<std::int64_t>(items->size()) > model_.max_positions) {
      code_ = kContextCode;
      fields_.refuse("messages", "has " + std::to_string(items->size()) +
                                     " messages, and the context has " +
                                     std::to_string(model_.max_positions) + " tokens");
      return;
    }
    for (std::size_t i = 0; i < items->size(); ++i) {
      check_content((*items)[i], i);
    }
    const bool continues = fields_.boolean("continue_final_message").value_or(false);
    const bool adds = fields_.boolean("add_generation_prompt").value_or(!continues);
    if (continues && adds) {
      fields_.refuse("add_generation_prompt", "excludes continue_final_message");
    }
    if (fields_.status().ok()) {
      encode_messages(*messages, continues ? Ending::kContinueFinal
                                           : (adds ? Ending::kGenerationPrompt : Ending::kPlain));
    }
  }

  // What `tool_choice` asks for.
  struct ToolChoice {
    bool none = false;
    bool forced = false;
    std::string only;  // the function to call, if forced; empty: any
  };

  ToolChoice read_tool_choice() {
    const Json* choice = fields_.find("tool_choice");
    if (choice == nullptr) {
      return {};
    }
    if (const std::string* name = choice->if_string()) {
      if (*name == "auto" || *name == "none" || *name == "required") {
        return {*name == "none", *name == "required", ""};
      }
    }
    const Json* type = choice->find("type");
    const Json* function = choice->find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (type == nullptr || type->if_string() == nullptr || *type->if_string() != "function" ||
        name == nullptr || name->if_string() == nullptr || name->if_string()->empty()) {
      fields_.refuse("tool_choice",
                     "must be \"auto\", \"none\", \"required\", or the type \"function\" and a "
                     "function with a name");
      return {};
    }
    return {false, true, *name->if_string()};
  }

  // Reads the names of the tools. Returns whether all have one.
  bool read_tool_names(const Json::Array& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Json* type = list[i].find("type");
      const Json* function = list[i].find("function");
      const Json* called = function == nullptr ? nullptr : function->find("name");
      if (type == nullptr || type->if_string() == nullptr || *type->if_string() != "function" ||
          called == nullptr || called->if_string() == nullptr) {
        fields_.refuse("tools[" + std::to_string(i) + "]",
                       "must have the type \"function\" and a function with a name");
        return false;
      }
      call_.tools.insert(*called->if_string());
    }
    return true;
  }

  // Constrains the response to calls, in the form of the model's template.
  void force_calls(const Json& tools, const ToolChoice& choice) {
    const bool one = call_.first_tool_call_only || !choice.only.empty();
    std::string refused;
    take(call_constraint({&tools, choice.only,
                          model_.chat->mentions("<tool_call>") ? engines::ToolCallForm::kTags
                                                               : engines::ToolCallForm::kPlain,
                          one ? engines::ToolCallCount::kOne : engines::ToolCallCount::kOneOrMore},
                         model_.constraints.get(), refused),
         refused);
  }

  // Returns the tools for the template, or null if the response must not call any.
  const Json* read_tools() {
    const Json* tools = fields_.find("tools");
    call_.first_tool_call_only = !fields_.boolean("parallel_tool_calls").value_or(true);
    const ToolChoice choice = read_tool_choice();
    const Json::Array* list = tools == nullptr ? nullptr : tools->if_array();
    if (tools != nullptr && list == nullptr) {
      fields_.refuse("tools", "must be a list");
    }
    if (list == nullptr || list->empty()) {
      if (choice.forced) {
        fields_.refuse("tool_choice", "needs tools");
      }
      return nullptr;
    }
    if (choice.none || !read_tool_names(*list)) {
      return nullptr;
    }
    if (!model_.chat->mentions("tools")) {
      fields_.refuse("tools", "the model's chat template does not use tools");
      return nullptr;
    }
    if (choice.forced && fields_.status().ok()) {
      force_calls(*tools, choice);
    }
    return tools;
  }

  // Returns a message whose calls of tools have objects as arguments, as chat templates expect
  // them, and not the text of objects, as OpenAI's API has them.
  Json with_parsed_calls(const Json& message) {
    const Json* calls = message.find("tool_calls");
    if (calls == nullptr || calls->if_array() == nullptr) {
      return message;
    }
    Json::Array parsed;
    for (const Json& call : *calls->if_array()) {
      parsed.push_back(with_member(call, "function", [this](const Json& function) {
        return with_member(function, "arguments", [this](const Json& arguments) {
          const std::string* text = arguments.if_string();
          argument_bytes_ += text == nullptr ? 0 : text->size();
          if (argument_bytes_ > kMaxArgumentBytes) {
            return arguments;  // `encode_messages` refuses it
          }
          const auto json = text == nullptr ? Result<Json>(arguments)
                                            : parse_json(*text, {.max_depth = kMaxDepth});
          return json.ok() && json.value().if_object() != nullptr ? json.value() : arguments;
        });
      }));
    }
    return with_member(message, "tool_calls", [&](const Json&) { return Json(parsed); });
  }

  // Returns `object` with the member `name` replaced by what `change` makes of it.
  template <class Change>
  static Json with_member(const Json& object, std::string_view name, Change change) {
    if (object.if_object() == nullptr) {
      return object;
    }
    Json::Object changed = *object.if_object();
    for (Json::Member& member : changed) {
      if (member.name == name) {
        member.value = change(member.value);
      }
    }
    return changed;
  }

  void encode_messages(const Json& messages, Ending ending) {
    const Json* tools = read_tools();
    if (!fields_.status().ok()) {
      return;
    }
    Json::Array list;
    for (const Json& message : *messages.if_array()) {
      list.push_back(with_parsed_calls(message));
    }
    if (argument_bytes_ > kMaxArgumentBytes) {
      fields_.refuse("messages", "the arguments of tool calls have more than " +
                                     std::to_string(kMaxArgumentBytes) + " bytes");
      return;
    }
    Json::Object object{{"messages", std::move(list)}};
    if (tools != nullptr) {
      object.push_back({"tools", *tools});
    }
    if (const Json* variables = fields_.find("chat_template_kwargs")) {
      if (variables->if_object() == nullptr) {
        fields_.refuse("chat_template_kwargs", "must be an object");
        return;
      }
      for (const Json::Member& member : *variables->if_object()) {
        if (member.name == "messages" || member.name == "tools") {
          fields_.refuse("chat_template_kwargs", "must not have " + member.name);
          return;
        }
        object.push_back(member);
      }
    }
    auto request = ChatRequest::from_json(Json(std::move(object)).to_line());
    if (!request.ok()) {
      fields_.refuse("messages", request.status().message());
      return;
    }
    ChatRequest chat = std::move(request).value();
    chat.ending = ending;
    chat.now = now_;
    if (!model_.chat->renders_parts()) {
      chat.messages = engines::chat::Value::sequence(
          engines::chat::with_joined_parts(chat.messages.as_sequence().items));
    }
    auto text = model_.chat->render(std::move(chat));
    if (!text.ok()) {
      fields_.refuse("messages", "the chat template failed: " + text.status().message());
      return;
    }
    // The template has written the special tokens itself. What it writes of the messages is its
    // choice, so their length alone refuses nothing.
    add_encoded("messages", std::move(text).value(), engines::AddSpecialTokens::kNo);
  }

  // Decides how long the responses may be. All prompts fit the context.
  void check_room() {
    if (!fields_.status().ok()) {
      return;
    }
    const char* field = call_.form == GenerationForm::kChat ? "messages" : "prompt";
    std::int64_t longest = 0;
    for (const Prompt& prompt : call_.prompts) {
      if (prompt.ids.empty()) {
        fields_.refuse(field, call_.form == GenerationForm::kChat
                                  ? "the chat template renders an empty prompt; give at least "
                                    "one message some content"
                                  : "a prompt has no tokens");
        return;
      }
      longest = std::max(longest, static_cast<std::int64_t>(prompt.ids.size()));
    }
    const std::int64_t room = model_.max_positions - longest;
    call_.settings.max_new_tokens = call_.requested_max_tokens.value_or(
        static_cast<std::int32_t>(std::min(room, model_.max_new_tokens.value_or(room))));
    check_size(longest, field);
    if (const Status valid = engines::validate(call_.settings.sampling, model_.vocab_size);
        !valid.ok()) {
      fields_.refuse(valid);
    }
  }

  // Checks that the response, and what the server holds for it, have a reasonable size.
  void check_size(std::int64_t longest, const char* field) {
    const auto choices = static_cast<std::int64_t>(call_.num_choices());
    const std::int64_t tokens = choices * (longest + call_.settings.max_new_tokens);
    std::size_t echoed = 0;
    for (const Prompt& prompt : call_.prompts) {
      echoed += call_.echo && prompt.text.has_value() ? prompt.text->size() : 0;
    }
    if (tokens > kMaxTokens) {
      fields_.refuse(field, "all prompts and responses have up to " + std::to_string(tokens) +
                                " tokens; at most " + std::to_string(kMaxTokens) + " are allowed");
    } else if (call_.logprobs && tokens * (1 + call_.settings.top_logprobs) > kMaxScores) {
      fields_.refuse("logprobs",
                     "at most " + std::to_string(kMaxScores) + " log-probabilities are returned");
    } else if (echoed * static_cast<std::size_t>(call_.num_per_prompt) > kMaxEchoedBytes) {
      fields_.refuse("echo", "at most " + std::to_string(kMaxEchoedBytes) + " bytes are echoed");
    }
  }

  const Json& body_;
  JsonFields fields_;
  const ServedModel& model_;
  const std::string& now_;
  GenerationCall call_;
  std::size_t argument_bytes_ = 0;  // of the tool calls that were read
  std::string code_;                // of the error
  std::string nested_;              // the refused member of a member object, if any
};

}  // namespace

std::span<const FieldInfo> generation_fields(GenerationForm form) {
  static constexpr auto kCompletion = joined(kCommonFields, kCompletionFields);
  static constexpr auto kChat = joined(kCommonFields, kChatFields);
  return form == GenerationForm::kChat ? std::span<const FieldInfo>(kChat)
                                       : std::span<const FieldInfo>(kCompletion);
}

ApiResult<GenerationCall> parse_generation(GenerationForm form, std::string_view body,
                                           const ServedModel& model, const std::string& now) {
  JsonLimits limits{.max_depth = kMaxDepth};
  if (form == GenerationForm::kChat) {
    limits.max_values = kMaxChatValues;  // those of a completion may be token ids
  }
  const auto json = parse_json(body, limits);
  if (!json.ok()) {
    return not_json(json.status());
  }
  return read_generation(form, json.value(), model, now);
}

ApiResult<GenerationCall> read_generation(GenerationForm form, const Json& body,
                                          const ServedModel& model, const std::string& now) {
  return CallReader(form, body, model, now).read();
}

}  // namespace tidemill::actors::openai
