// SPDX-License-Identifier: Apache-2.0
// The responses of /v1/completions and /v1/chat/completions, whole or as events of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/device/messages.hpp"
#include "actors/gateway/openai/api_error.hpp"
#include "actors/gateway/openai/generation_call.hpp"
#include "actors/gateway/openai/text_stream.hpp"
#include "actors/gateway/openai/tool_calls.hpp"
#include "actors/gateway/served_model.hpp"

namespace tidemill::actors::openai {

/// Builds the response to one request from the tokens of its choices.
///
/// In a stream, `begin`, `on_tokens`, `on_result` and `end_stream` return events to send; they may
/// be empty. Without a stream, they return nothing, and `body` returns the response once all
/// choices have ended. Choice p * `num_per_prompt` + k is the k-th response to prompt p.
/// Threads: one call at a time. Borrows `model`.
class ResponseBuilder {
public:
  /// `id` is the name of the response, such as "cmpl-1", and `created` the time in Unix seconds.
  ResponseBuilder(GenerationCall call, const ServedModel& model, std::string id,
                  std::int64_t created);

  [[nodiscard]] const GenerationCall& call() const noexcept { return call_; }

  /// Returns the events before the first token.
  [[nodiscard]] std::string begin();
  /// Takes the next tokens of the choice `index`. Tokens that it has already are ignored.
  [[nodiscard]] std::string on_tokens(std::size_t index, const TokenEvent& tokens);
  /// Takes the end of the choice `index`, and the tokens that `on_tokens` has not seen.
  [[nodiscard]] std::string on_result(std::size_t index, const engines::RolloutResult& result);

  /// Returns whether all choices have ended.
  [[nodiscard]] bool complete() const noexcept { return num_ended_ == choices_.size(); }
  /// Returns the last events: the usage, if the request wants it, and the end mark.
  [[nodiscard]] std::string end_stream() const;
  /// Returns the events that end a stream with an error.
  [[nodiscard]] static std::string error_events(const ApiError& error);
  [[nodiscard]] Json body() const;

private:
  /// A token of a response, for `logprobs`.
  struct Scored {
    std::int32_t token = -1;
    std::optional<float> logprob;  // absent: the first token of an echoed prompt
    std::vector<engines::TokenLogprob> top;
  };
  struct Choice {
    std::optional<TextStream> text;
    ToolCallReader tool_reader;
    std::string all_text;         // of the response, after an echoed prompt, without calls
    std::vector<ToolCall> calls;  // of tools
    std::size_t num_sent_calls = 0;
    std::vector<Scored> scored;   // not sent yet
    std::size_t num_tokens = 0;   // taken
    std::size_t text_offset = 0;  // characters before `scored`
    std::int64_t cached_tokens = 0;
    std::string weight_version;
    const char* finish_reason = nullptr;  // null: it has not ended
  };

  [[nodiscard]] bool is_chat() const noexcept { return call_.form == GenerationForm::kChat; }
  [[nodiscard]] const Prompt& prompt_of(std::size_t choice) const {
    return call_.prompts[choice / static_cast<std::size_t>(call_.num_per_prompt)];
  }
  [[nodiscard]] std::string echoed_text(const Prompt& prompt) const;
  /// Returns whether nothing can be sent before the result, which has the log-probabilities of an
  /// echoed prompt.
  [[nodiscard]] bool needs_prompt_scores() const noexcept { return call_.echo && call_.logprobs; }
  void score_prompt(std::size_t index, const engines::RolloutResult& result);
  [[nodiscard]] std::string take(Choice& choice, std::int32_t token, float logprob,
                                 std::span<const engines::TokenLogprob> top);
  [[nodiscard]] std::string without_calls(Choice& choice, std::string text, bool is_end) const;
  [[nodiscard]] Json calls_json(std::size_t index, std::size_t first, bool is_event) const;
  [[nodiscard]] std::string token_text(std::int32_t token) const;
  [[nodiscard]] Json chat_logprobs(const std::vector<Scored>& scored) const;
  [[nodiscard]] Json completion_logprobs(const std::vector<Scored>& scored,
                                         std::size_t text_offset) const;
  [[nodiscard]] Json logprobs(Choice& choice) const;
  [[nodiscard]] Json usage() const;
  [[nodiscard]] Json::Object frame(bool is_event) const;
  [[nodiscard]] std::string event(std::size_t index, const std::string& text, bool is_last);
  [[nodiscard]] Json whole_choice(std::size_t index) const;

  GenerationCall call_;
  const ServedModel& model_;
  std::string id_;
  std::int64_t created_;
  std::vector<Choice> choices_;
  std::size_t num_ended_ = 0;
};

}  // namespace tidemill::actors::openai
