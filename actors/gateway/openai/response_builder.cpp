// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/response_builder.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::actors::openai {
namespace {

const char* finish_name(engines::FinishReason reason) {
  return reason == engines::FinishReason::kLength ? "length" : "stop";
}

Json null_or(const char* text) {
  return text == nullptr ? Json() : Json(text);
}

Json integer(std::size_t value) {
  return static_cast<std::int64_t>(value);
}

std::string sse_event(const Json& data) {
  return "data: " + data.to_line() + "\n";
}

}  // namespace

ResponseBuilder::ResponseBuilder(GenerationCall call, const ServedModel& model, std::string id,
                                 std::int64_t created)
    : call_(std::move(call)),
      model_(model),
      id_(std::move(id)),
      created_(created),
      choices_(call_.num_choices()) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].tool_reader = ToolCallReader(call_.tools);
    choices_[i].text.emplace(model_.tokenizer, call_.settings.stop_strings,
                             prompt_of(i).ids.back());
    choices_[i].all_text = call_.echo ? echoed_text(prompt_of(i)) : "";
  }
}

std::string ResponseBuilder::echoed_text(const Prompt& prompt) const {
  return prompt.text.has_value()
             ? *prompt.text
             : model_.tokenizer.decode(prompt.ids, engines::SpecialTokenText::kKeep);
}

std::string ResponseBuilder::token_text(std::int32_t token) const {
  std::string text;
  const std::string_view bytes = model_.tokenizer.token_bytes(token);
  const std::size_t end = append_repaired_utf8(bytes, text);
  if (end < bytes.size()) {
    text += "\xEF\xBF\xBD";
  }
  return text;
}

// -- events and bodies ----------------------------------------------------------------------------

Json::Object ResponseBuilder::frame(bool is_event) const {
  const char* object = !is_chat() ? "text_completion"
                       : is_event ? "chat.completion.chunk"
                                  : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", call_.model}};
}

std::string ResponseBuilder::begin() {
  std::string events;
  for (std::size_t i = 0; i < choices_.size() && call_.stream; ++i) {
    if (!is_chat()) {
      events += call_.echo && !call_.logprobs ? event(i, echoed_text(prompt_of(i)), false) : "";
      continue;
    }
    Json::Object object = frame(true);
    object.push_back(
        {"choices",
         Json::Array{Json::Object{{"index", integer(i)},
                                  {"delta", Json::Object{{"role", "assistant"}, {"content", ""}}},
                                  {"logprobs", Json()},
                                  {"finish_reason", Json()}}}});
    events += sse_event(object);
  }
  return events;
}

std::string ResponseBuilder::event(std::size_t index, const std::string& text, bool is_last) {
  Choice& choice = choices_[index];
  const bool has_calls = choice.num_sent_calls < choice.calls.size();
  if (!call_.stream || (text.empty() && !has_calls && !is_last)) {
    return {};
  }
  Json::Object one{{"index", integer(index)}};
  if (is_chat()) {
    Json::Object delta;
    if (!text.empty()) {
      delta.push_back({"content", text});
    }
    if (has_calls) {
      delta.push_back({"tool_calls", calls_json(index, choice.num_sent_calls, true)});
      choice.num_sent_calls = choice.calls.size();
    }
    one.push_back({"delta", std::move(delta)});
  } else {
    one.push_back({"text", text});
  }
  one.push_back({"logprobs", call_.logprobs ? logprobs(choice) : Json()});
  one.push_back({"finish_reason", null_or(is_last ? choice.finish_reason : nullptr)});
  Json::Object object = frame(true);
  object.push_back({"choices", Json::Array{std::move(one)}});
  if (call_.include_usage) {
    object.push_back({"usage", Json()});
  }
  return sse_event(object);
}

std::string ResponseBuilder::end_stream() const {
  std::string events;
  if (call_.include_usage) {
    Json::Object object = frame(true);
    object.push_back({"choices", Json::Array{}});
    object.push_back({"usage", usage()});
    events = sse_event(object);
  }
  return events + "data: [DONE]\n\n";
}

std::string ResponseBuilder::error_events(const ApiError& error) {
  return sse_event(to_json(error)) + "data: [DONE]\n\n";
}

Json ResponseBuilder::whole_choice(std::size_t index) const {
  const Choice& choice = choices_[index];
  Json::Object one{{"index", integer(index)}};
  if (is_chat()) {
    Json::Object message{{"role", "assistant"}};
    const bool no_text = choice.all_text.empty() && !choice.calls.empty();
    message.push_back({"content", no_text ? Json() : Json(choice.all_text)});
    if (!choice.calls.empty()) {
      message.push_back({"tool_calls", calls_json(index, 0, false)});
    }
    one.push_back({"message", std::move(message)});
    one.push_back({"logprobs", call_.logprobs ? chat_logprobs(choice.scored) : Json()});
  } else {
    one.push_back({"text", choice.all_text});
    one.push_back({"logprobs", call_.logprobs ? completion_logprobs(choice.scored, 0) : Json()});
  }
  one.push_back({"finish_reason", null_or(choice.finish_reason)});
  return one;
}

// Returns the calls from `first` on. In an event, each has its index.
Json ResponseBuilder::calls_json(std::size_t index, std::size_t first, bool is_event) const {
  const Choice& choice = choices_[index];
  Json::Array all;
  for (std::size_t i = first; i < choice.calls.size(); ++i) {
    Json::Object one;
    if (is_event) {
      one.push_back({"index", integer(i)});
    }
    one.push_back({"id", "call-" + id_ + "-" + std::to_string(index) + "-" + std::to_string(i)});
    one.push_back({"type", "function"});
    one.push_back({"function", Json::Object{{"name", choice.calls[i].name},
                                            {"arguments", choice.calls[i].arguments}}});
    all.emplace_back(std::move(one));
  }
  return all;
}

Json ResponseBuilder::body() const {
  Json::Object object = frame(false);
  Json::Array all;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    all.push_back(whole_choice(i));
  }
  object.push_back({"choices", std::move(all)});
  object.push_back({"usage", usage()});
  return object;
}

Json ResponseBuilder::usage() const {
  std::size_t prompt_tokens = 0;
  std::size_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
  for (const Prompt& prompt : call_.prompts) {
    prompt_tokens += prompt.ids.size();
  }
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    completion_tokens += choices_[i].num_tokens;
    // The other choices find the prompt that the first one has computed.
    const bool is_first = i % static_cast<std::size_t>(call_.num_per_prompt) == 0;
    cached_tokens += is_first ? choices_[i].cached_tokens : 0;
  }
  return Json::Object{
      {"prompt_tokens", integer(prompt_tokens)},
      {"completion_tokens", integer(completion_tokens)},
      {"total_tokens", integer(prompt_tokens + completion_tokens)},
      {"prompt_tokens_details", Json::Object{{"cached_tokens", cached_tokens}}},
      {"weight_version", choices_.front().weight_version},
  };
}

// -- tokens ---------------------------------------------------------------------------------------

std::string ResponseBuilder::take(Choice& choice, std::int32_t token, float logprob,
                                  std::span<const engines::TokenLogprob> top) {
  ++choice.num_tokens;
  const auto& ends = call_.settings.stop_ids;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
    return {};  // the end token is not part of the text
  }
  if (call_.logprobs) {
    choice.scored.push_back({token, logprob, {top.begin(), top.end()}});
  }
  return choice.text->push(token);
}

// Returns `text`, the next of a response, without the calls of tools, which it adds to the choice.
std::string ResponseBuilder::without_calls(Choice& choice, std::string text, bool is_end) const {
  if (call_.tools.empty()) {
    return text;
  }
  ToolPiece piece = choice.tool_reader.push(text);
  if (is_end) {
    ToolPiece last = choice.tool_reader.finish();
    piece.text += last.text;
    piece.calls.insert(piece.calls.end(), last.calls.begin(), last.calls.end());
  }
  choice.calls.insert(choice.calls.end(), piece.calls.begin(), piece.calls.end());
  if (call_.first_tool_call_only && choice.calls.size() > 1) {
    choice.calls.resize(1);
  }
  return std::move(piece.text);
}

std::string ResponseBuilder::on_tokens(std::size_t index, const TokenEvent& tokens) {
  Choice& choice = choices_[index];
  if (needs_prompt_scores() || choice.finish_reason != nullptr) {
    return {};
  }
  std::string text;
  const auto width = static_cast<std::size_t>(call_.settings.top_logprobs);
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.first + i == choice.num_tokens) {
      text += take(choice, tokens.ids[i], tokens.behavior_logprobs[i],
                   std::span(tokens.top_logprobs).subspan(i * width, width));
    }
  }
  text = without_calls(choice, std::move(text), false);
  choice.all_text += text;
  return event(index, text, false);
}

void ResponseBuilder::score_prompt(std::size_t index, const engines::RolloutResult& result) {
  Choice& choice = choices_[index];
  const Prompt& prompt = prompt_of(index);
  const auto width = static_cast<std::size_t>(call_.settings.prompt_top_logprobs);
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    Scored scored;
    scored.token = prompt.ids[i];
    if (i > 0) {
      scored.logprob = result.prompt_logprobs[i - 1];
      const auto top = std::span(result.prompt_top_logprobs).subspan((i - 1) * width, width);
      scored.top.assign(top.begin(), top.end());
    }
    choice.scored.push_back(std::move(scored));
  }
}

std::string ResponseBuilder::on_result(std::size_t index, const engines::RolloutResult& result) {
  Choice& choice = choices_[index];
  TIDEMILL_CHECK(choice.finish_reason == nullptr);
  std::string text;  // that no event has had
  if (needs_prompt_scores()) {
    score_prompt(index, result);
    text = choice.all_text;
  }
  std::string rest;
  const auto width = static_cast<std::size_t>(call_.settings.top_logprobs);
  for (std::size_t i = choice.num_tokens; i < result.response_ids.size(); ++i) {
    rest += take(choice, result.response_ids[i], result.behavior_logprobs[i],
                 std::span(result.top_logprobs).subspan(i * width, width));
  }
  rest += choice.text->finish();
  rest = without_calls(choice, std::move(rest), true);
  choice.all_text += rest;
  text += rest;
  const bool calls = !choice.calls.empty() && result.finish_reason == engines::FinishReason::kStop;
  choice.finish_reason = calls ? "tool_calls" : finish_name(result.finish_reason);
  choice.cached_tokens = result.cached_tokens;
  if (!result.versions.empty()) {
    choice.weight_version = to_string(result.versions.back().version);
  }
  ++num_ended_;
  return event(index, text, true);
}

// -- log-probabilities ----------------------------------------------------------------------------

Json ResponseBuilder::logprobs(Choice& choice) const {
  const std::vector<Scored> scored = std::exchange(choice.scored, {});
  if (is_chat()) {
    return chat_logprobs(scored);
  }
  const std::size_t offset = choice.text_offset;
  for (const Scored& one : scored) {
    choice.text_offset += count_code_points(token_text(one.token));
  }
  return completion_logprobs(scored, offset);
}

Json ResponseBuilder::chat_logprobs(const std::vector<Scored>& scored) const {
  const auto entry = [&](std::int32_t token, float logprob) {
    Json::Array bytes;
    for (const char c : model_.tokenizer.token_bytes(token)) {
      bytes.emplace_back(int{static_cast<unsigned char>(c)});
    }
    return Json::Object{
        {"token", token_text(token)}, {"logprob", double{logprob}}, {"bytes", std::move(bytes)}};
  };
  Json::Array content;
  for (const Scored& one : scored) {
    Json::Array top;
    for (const engines::TokenLogprob& other : one.top) {
      top.emplace_back(entry(other.token, other.logprob));
    }
    Json::Object object = entry(one.token, one.logprob.value_or(0.0F));
    object.push_back({"top_logprobs", std::move(top)});
    content.emplace_back(std::move(object));
  }
  return Json::Object{{"content", std::move(content)}, {"refusal", Json()}};
}

Json ResponseBuilder::completion_logprobs(const std::vector<Scored>& scored,
                                          std::size_t text_offset) const {
  Json::Array tokens;
  Json::Array values;
  Json::Array tops;
  Json::Array offsets;
  for (const Scored& one : scored) {
    const std::string text = token_text(one.token);
    tokens.emplace_back(text);
    values.emplace_back(one.logprob.has_value() ? Json(double{*one.logprob}) : Json());
    Json::Object top;
    std::set<std::string> seen;  // tokens may have the same text
    for (const engines::TokenLogprob& other : one.top) {
      if (std::string name = token_text(other.token); seen.insert(name).second) {
        top.push_back({std::move(name), double{other.logprob}});
      }
    }
    tops.emplace_back(one.logprob.has_value() ? Json(std::move(top)) : Json());
    offsets.push_back(integer(text_offset));
    text_offset += count_code_points(text);
  }
  return Json::Object{{"tokens", std::move(tokens)},
                      {"token_logprobs", std::move(values)},
                      {"top_logprobs", std::move(tops)},
                      {"text_offset", std::move(offsets)}};
}

}  // namespace tidemill::actors::openai
