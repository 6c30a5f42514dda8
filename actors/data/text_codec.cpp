// SPDX-License-Identifier: Apache-2.0
#include "actors/data/text_codec.hpp"

#include <algorithm>
#include <utility>

#include "engines/chat/conversation.hpp"

namespace tidemill::actors {
namespace {

using engines::AddSpecialTokens;
using engines::Tokenizer;
using engines::chat::ChatRequest;
using engines::chat::ChatTemplate;
using engines::chat::Ending;
using engines::chat::has_role;
using engines::chat::List;
using engines::chat::make_message;
using engines::chat::Value;
using engines::chat::with_system_message;

// Returns whether `whole` begins with `start`.
bool begins_with(const std::vector<std::int32_t>& whole, const std::vector<std::int32_t>& start) {
  return start.size() <= whole.size() && std::equal(start.begin(), start.end(), whole.begin());
}

// Returns a list of the messages before index `end`.
Value first_messages(const List& messages, std::size_t end) {
  return Value::sequence(
      List(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(end)));
}

}  // namespace

Result<TextCodec> TextCodec::load(const std::filesystem::path& path, std::string now,
                                  ChatOptions options) {
  TIDEMILL_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(path));
  TextCodec codec(std::move(tokenizer), std::move(now), std::move(options));
  const auto& templates = codec.tokenizer_.config().chat_templates;
  if (const auto it = templates.find("default"); it != templates.end()) {
    auto parsed = ChatTemplate::parse(it->second);
    if (!parsed.ok()) {
      return parsed.status().with_context(path.string() + ": chat template");
    }
    codec.template_ = std::move(parsed).value();
  } else if (codec.options_.prompts_as_messages) {
    return invalid_argument(path.string() + ": has no chat template, which data.chat requires");
  }
  return codec;
}

// Refuses rows of plain text if a system message is set.
Status TextCodec::check_no_system() const {
  return options_.system.empty()
             ? Status()
             : invalid_argument(std::string("data.system requires messages, but the row is plain "
                                            "text; ") +
                                (options_.prompts_as_messages ? "" : "set data.chat or ") +
                                "remove data.system");
}

Result<std::string> TextCodec::render(const Value& messages, Ending ending) const {
  if (!template_.has_value()) {
    return invalid_argument("the row has messages, but the model has no chat template");
  }
  ChatRequest request;
  request.messages = messages;
  request.ending = ending;
  request.now = now_;
  const engines::TokenizerConfig& config = tokenizer_.config();
  for (const auto& [name, token] :
       {std::pair{"bos_token", config.bos_token}, std::pair{"eos_token", config.eos_token},
        std::pair{"pad_token", config.pad_token}}) {
    if (token.has_value()) {
      request.variables.emplace_back(name, Value(*token));
    }
  }
  auto rendering = template_->render(request);
  if (!rendering.ok()) {
    return rendering.status().with_context("chat template");
  }
  return std::move(rendering.value().text);
}

Result<std::vector<std::int32_t>> TextCodec::prompt_ids(const storage::PromptRow& row) const {
  auto ids = [&]() -> Result<std::vector<std::int32_t>> {
    List messages;
    if (!row.messages.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(const Value parsed, Value::parse_json(row.messages));
      messages = parsed.as_sequence().items;
    } else if (options_.prompts_as_messages) {
      messages.push_back(make_message("user", row.prompt));
    } else {
      TIDEMILL_RETURN_IF_ERROR(check_no_system());
      return tokenizer_.encode(row.prompt, AddSpecialTokens::kYes);
    }
    // A chat template writes the special tokens itself.
    TIDEMILL_ASSIGN_OR_RETURN(const std::string text,
                              render(with_system_message(std::move(messages), options_.system),
                                     Ending::kGenerationPrompt));
    return tokenizer_.encode(text, AddSpecialTokens::kNo);
  }();
  if (ids.ok() && ids.value().empty()) {
    return invalid_argument(row.location.to_string() + ": the prompt has no tokens");
  }
  return ids.ok() ? std::move(ids) : ids.status().with_context(row.location.to_string());
}

Result<SupervisedTokens> TextCodec::supervised_answer(const std::string& prompt,
                                                      const std::string& answer) const {
  TIDEMILL_RETURN_IF_ERROR(check_no_system());
  SupervisedTokens tokens;
  TIDEMILL_ASSIGN_OR_RETURN(tokens.ids, tokenizer_.encode(prompt, AddSpecialTokens::kYes));
  tokens.loss_mask.assign(tokens.ids.size(), 0);
  TIDEMILL_ASSIGN_OR_RETURN(std::vector<std::int32_t> ids,
                            tokenizer_.encode(answer, AddSpecialTokens::kNo));
  if (tokenizer_.eos_id().has_value()) {
    ids.push_back(*tokenizer_.eos_id());
  }
  tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
  tokens.loss_mask.resize(tokens.ids.size(), 1);
  return tokens;
}

// Finds the assistant's turns by rendering the messages twice for each of them: up to the header of
// the turn, and up to its end. Templates whose earlier text depends on later messages cannot be
// split in this way and are refused.
Result<SupervisedTokens> TextCodec::supervised_messages(const Value& messages) const {
  const List& list = messages.as_sequence().items;
  SupervisedTokens tokens;
  TIDEMILL_ASSIGN_OR_RETURN(const std::string whole, render(messages, Ending::kPlain));
  TIDEMILL_ASSIGN_OR_RETURN(tokens.ids, tokenizer_.encode(whole, AddSpecialTokens::kNo));
  tokens.loss_mask.assign(tokens.ids.size(), 0);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!has_role(list[i], "assistant")) {
      continue;
    }
    TIDEMILL_ASSIGN_OR_RETURN(const std::string before,
                              render(first_messages(list, i), Ending::kGenerationPrompt));
    TIDEMILL_ASSIGN_OR_RETURN(const std::string after,
                              render(first_messages(list, i + 1), Ending::kPlain));
    TIDEMILL_ASSIGN_OR_RETURN(const auto first, tokenizer_.encode(before, AddSpecialTokens::kNo));
    TIDEMILL_ASSIGN_OR_RETURN(const auto last, tokenizer_.encode(after, AddSpecialTokens::kNo));
    if (!begins_with(tokens.ids, first) || !begins_with(tokens.ids, last) ||
        last.size() < first.size()) {
      return invalid_argument("the chat template renders message " + std::to_string(i + 1) +
                              " differently if more messages follow; use input_ids and loss_mask");
    }
    std::fill(tokens.loss_mask.begin() + static_cast<std::ptrdiff_t>(first.size()),
              tokens.loss_mask.begin() + static_cast<std::ptrdiff_t>(last.size()), 1);
  }
  return tokens;
}

// Returns `text` with the end token after it, unless it ends with that token.
std::string TextCodec::with_end_token(std::string text) const {
  const std::string end = tokenizer_.config().eos_token.value_or("");
  const bool has_end =
      text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  return has_end ? std::move(text) : std::move(text) + end;
}

Result<SupervisedTokens> TextCodec::supervised_text(const std::string& text) const {
  TIDEMILL_RETURN_IF_ERROR(check_no_system());
  SupervisedTokens tokens;
  TIDEMILL_ASSIGN_OR_RETURN(tokens.ids,
                            tokenizer_.encode(with_end_token(text), AddSpecialTokens::kYes));
  tokens.loss_mask.assign(tokens.ids.size(), 1);
  if (!tokens.loss_mask.empty()) {
    tokens.loss_mask.front() = 0;
  }
  return tokens;
}

// Encodes both parts together, as TRL does. If a token spans the border, they are encoded apart: a
// prompt is also encoded alone when the model is used, and no part of the continuation is masked.
Result<SupervisedTokens> TextCodec::supervised_continuation(const std::string& prompt,
                                                            const std::string& continuation) const {
  TIDEMILL_RETURN_IF_ERROR(check_no_system());
  const std::string end = with_end_token(continuation);
  SupervisedTokens tokens;
  TIDEMILL_ASSIGN_OR_RETURN(const auto first, tokenizer_.encode(prompt, AddSpecialTokens::kYes));
  TIDEMILL_ASSIGN_OR_RETURN(tokens.ids, tokenizer_.encode(prompt + end, AddSpecialTokens::kYes));
  if (!begins_with(tokens.ids, first)) {
    tokens.ids = first;
    TIDEMILL_ASSIGN_OR_RETURN(const auto second, tokenizer_.encode(end, AddSpecialTokens::kNo));
    tokens.ids.insert(tokens.ids.end(), second.begin(), second.end());
  }
  tokens.loss_mask.assign(first.size(), 0);
  tokens.loss_mask.resize(tokens.ids.size(), 1);
  return tokens;
}

// All that the template renders after the prompt and the header of the turn are targets.
Result<SupervisedTokens> TextCodec::supervised_chat(List prompt, const List& continuation) const {
  prompt.insert(prompt.end(), continuation.begin(), continuation.end());
  const Value whole = with_system_message(std::move(prompt), options_.system);
  const List& list = whole.as_sequence().items;
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::string before,
      render(first_messages(list, list.size() - continuation.size()), Ending::kGenerationPrompt));
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, render(whole, Ending::kPlain));
  TIDEMILL_ASSIGN_OR_RETURN(const auto first, tokenizer_.encode(before, AddSpecialTokens::kNo));
  SupervisedTokens tokens;
  TIDEMILL_ASSIGN_OR_RETURN(tokens.ids, tokenizer_.encode(text, AddSpecialTokens::kNo));
  if (!begins_with(tokens.ids, first)) {
    return invalid_argument(
        "the chat template renders the prompt differently if the completion follows; use "
        "input_ids and labels");
  }
  tokens.loss_mask.assign(first.size(), 0);
  tokens.loss_mask.resize(tokens.ids.size(), 1);
  return tokens;
}

Result<SupervisedTokens> TextCodec::supervised(const storage::SupervisedRow& row) const {
  using Kind = storage::SupervisedRow::Kind;
  auto tokens = [&]() -> Result<SupervisedTokens> {
    switch (row.kind) {
      case Kind::kTokens: return SupervisedTokens{row.input_ids, row.loss_mask};
      case Kind::kMessages: {
        TIDEMILL_ASSIGN_OR_RETURN(const Value messages, Value::parse_json(row.messages));
        return supervised_messages(
            with_system_message(messages.as_sequence().items, options_.system));
      }
      case Kind::kText: return supervised_text(row.text);
      case Kind::kContinuedText:
        return options_.prompts_as_messages
                   ? supervised_chat({make_message("user", row.prompt)},
                                     {make_message("assistant", row.continuation)})
                   : supervised_continuation(row.prompt, row.continuation);
      case Kind::kContinuedChat: {
        TIDEMILL_ASSIGN_OR_RETURN(const Value prompt, Value::parse_json(row.messages));
        TIDEMILL_ASSIGN_OR_RETURN(const Value continuation, Value::parse_json(row.continuation));
        return supervised_chat(prompt.as_sequence().items, continuation.as_sequence().items);
      }
      case Kind::kPromptAnswer:
        return options_.prompts_as_messages ? supervised_messages(with_system_message(
                                                  {make_message("user", row.prompt),
                                                   make_message("assistant", row.reference_answer)},
                                                  options_.system))
                                            : supervised_answer(row.prompt, row.reference_answer);
    }
    return Status(Errc::kInternal, "unknown kind of row");
  }();
  return tokens.ok() ? std::move(tokens) : tokens.status().with_context(row.location.to_string());
}

}  // namespace tidemill::actors
