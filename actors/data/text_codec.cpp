// SPDX-License-Identifier: Apache-2.0
#include "actors/data/text_codec.hpp"

#include <algorithm>
#include <utility>

#include "engines/chat/conversation.hpp"
#include "engines/chat/generation_mask.hpp"

namespace tidemill::actors {
namespace {

using engines::AddSpecialTokens;
using engines::Tokenizer;
using engines::chat::ChatRequest;
using engines::chat::ChatTemplate;
using engines::chat::CodePointSpan;
using engines::chat::Ending;
using engines::chat::has_role;
using engines::chat::List;
using engines::chat::make_message;
using engines::chat::Rendering;
using engines::chat::Value;
using engines::chat::with_joined_parts;
using engines::chat::with_parsed_arguments;

// Returns whether `whole` begins with `start`.
bool begins_with(const std::vector<std::int32_t>& whole, const std::vector<std::int32_t>& start) {
  return start.size() <= whole.size() && std::equal(start.begin(), start.end(), whole.begin());
}

// Returns a list of the messages before index `end`.
List first_messages(const List& messages, std::size_t end) {
  return {messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Returns whether a row excludes `message` from the loss.
bool is_excluded(const Value& message) {
  const Value* weight = message.as_dict().member("weight");
  return weight != nullptr && weight->integer() == 0;
}

// Returns the generation blocks of the messages that are not excluded from the loss.
Result<std::vector<CodePointSpan>> included_spans(const List& messages,
                                                  const std::vector<CodePointSpan>& spans) {
  if (std::none_of(messages.begin(), messages.end(), is_excluded)) {
    return spans;
  }
  std::vector<CodePointSpan> included;
  std::size_t turn = 0;
  for (const Value& message : messages) {
    if (!has_role(message, "assistant")) {
      continue;
    }
    if (turn < spans.size() && !is_excluded(message)) {
      included.push_back(spans[turn]);
    }
    ++turn;
  }
  if (turn != spans.size()) {
    return invalid_argument("the chat template renders " + std::to_string(spans.size()) +
                            " generation blocks for " + std::to_string(turn) +
                            " assistant messages, so messages with weight 0 cannot be excluded");
  }
  return included;
}

}  // namespace

Result<TextCodec> TextCodec::load(const std::filesystem::path& path, std::string now,
                                  ChatOptions options) {
  TIDEMILL_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(path));
  TextCodec codec(std::move(tokenizer), std::move(now), std::move(options));
  TIDEMILL_RETURN_IF_ERROR(codec.parse_variables());
  const auto& templates = codec.tokenizer_.config().chat_templates;
  if (const auto it = templates.find("default"); it != templates.end()) {
    if (Status parsed = codec.parse_template(it->second); !parsed.ok()) {
      return parsed.with_context(path.string() + ": chat template");
    }
  } else if (codec.options_.prompts_as_messages) {
    return invalid_argument(path.string() + ": has no chat template, which data.chat requires");
  }
  return codec;
}

Status TextCodec::parse_variables() {
  const engines::TokenizerConfig& config = tokenizer_.config();
  for (const auto& [name, token] :
       {std::pair{"bos_token", config.bos_token}, std::pair{"eos_token", config.eos_token},
        std::pair{"pad_token", config.pad_token}}) {
    if (token.has_value()) {
      variables_.emplace_back(name, Value(*token));
    }
  }
  if (options_.variables.empty()) {
    return {};
  }
  const auto parsed = Value::parse_json(options_.variables);
  if (!parsed.ok() || !parsed.value().is_dict()) {
    return invalid_argument("data.chat_template_kwargs: " +
                            (parsed.ok() ? "must be a JSON object" : parsed.status().message()));
  }
  // Of two variables of the same name the later one is used.
  for (const engines::chat::Dict::Entry& entry : parsed.value().as_dict().entries()) {
    variables_.emplace_back(entry.key.as_string(), entry.value);
  }
  return {};
}

Status TextCodec::parse_template(const std::string& text) {
  TIDEMILL_ASSIGN_OR_RETURN(template_, ChatTemplate::parse(text));
  knows_tools_ = text.find("tools") != std::string::npos;
  knows_calls_ = text.find("tool_calls") != std::string::npos;
  marks_generation_ = engines::chat::has_generation_tag(text);
  renders_parts_ = engines::chat::renders_parts(*template_, request());
  return {};
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

ChatRequest TextCodec::request() const {
  ChatRequest request;
  request.now = now_;
  request.variables = variables_;
  return request;
}

// Parses the arguments of tool calls. Joins the parts of a message's content unless the template
// renders parts itself.
Result<List> TextCodec::messages_from(const std::string& json) const {
  TIDEMILL_ASSIGN_OR_RETURN(const Value parsed, Value::parse_json(json));
  List messages = with_parsed_arguments(parsed.as_sequence().items);
  const bool has_calls = std::any_of(messages.begin(), messages.end(), [](const Value& message) {
    const Value* calls = message.as_dict().member("tool_calls");
    return calls != nullptr && calls->truthy();
  });
  if (has_calls && template_.has_value() && !knows_calls_) {
    return invalid_argument("the row has tool_calls, which the model's chat template does not use");
  }
  return renders_parts_ ? std::move(messages) : with_joined_parts(std::move(messages));
}

List TextCodec::with_system(List messages) const {
  return engines::chat::with_system_message(std::move(messages), options_.system)
      .as_sequence()
      .items;
}

Result<Value> TextCodec::tools_from(const std::string& json) const {
  if (json.empty()) {
    return Value();
  }
  if (template_.has_value() && !knows_tools_) {
    return invalid_argument("the row has tools, which the model's chat template does not use");
  }
  return Value::parse_json(json);
}

// Returns the messages and the tools of a row.
Result<TextCodec::Conversation> TextCodec::conversation(const std::string& messages,
                                                        const std::string& tools) const {
  Conversation conversation;
  TIDEMILL_ASSIGN_OR_RETURN(conversation.tools, tools_from(tools));
  TIDEMILL_ASSIGN_OR_RETURN(conversation.messages, messages_from(messages));
  return conversation;
}

Result<Rendering> TextCodec::rendering(const Conversation& conversation, Ending ending) const {
  if (!template_.has_value()) {
    return invalid_argument("the row has messages, but the model has no chat template");
  }
  ChatRequest request = this->request();
  request.messages = Value::sequence(conversation.messages);
  request.tools = conversation.tools;
  request.ending = ending;
  auto rendering = template_->render(request);
  return rendering.ok() ? std::move(rendering) : rendering.status().with_context("chat template");
}

Result<std::string> TextCodec::render(const Conversation& conversation, Ending ending) const {
  TIDEMILL_ASSIGN_OR_RETURN(Rendering whole, rendering(conversation, ending));
  return std::move(whole.text);
}

Result<std::vector<std::int32_t>> TextCodec::rendered_ids(const Conversation& conversation,
                                                          Ending ending) const {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, render(conversation, ending));
  // A chat template writes the special tokens itself.
  return tokenizer_.encode(text, AddSpecialTokens::kNo);
}

Result<std::vector<std::int32_t>> TextCodec::prompt_ids(const storage::PromptRow& row) const {
  auto ids = [&]() -> Result<std::vector<std::int32_t>> {
    if (row.messages.empty() && !options_.prompts_as_messages) {
      TIDEMILL_RETURN_IF_ERROR(check_no_system());
      return tokenizer_.encode(row.prompt, AddSpecialTokens::kYes);
    }
    Conversation prompt{with_system(List{make_message("user", row.prompt)})};
    if (!row.messages.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(prompt, conversation(row.messages, row.tools));
      prompt.messages = with_system(std::move(prompt.messages));
    }
    return rendered_ids(prompt, Ending::kGenerationPrompt);
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

// Returns messages whose targets are marked by the template.
Result<SupervisedTokens> TextCodec::marked_messages(const Conversation& conversation) const {
  TIDEMILL_ASSIGN_OR_RETURN(const Rendering whole, rendering(conversation, Ending::kPlain));
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<CodePointSpan> spans,
                            included_spans(conversation.messages, whole.generation_spans));
  TIDEMILL_ASSIGN_OR_RETURN(engines::Encoding encoding,
                            tokenizer_.encode_with_spans(whole.text, AddSpecialTokens::kNo));
  SupervisedTokens tokens;
  tokens.loss_mask = engines::chat::generation_mask(whole.text, spans, encoding);
  tokens.ids = std::move(encoding.ids);
  return tokens;
}

// Makes the assistant's message at index `turn` a target. Renders the messages up to the header of
// the turn and up to its end. Returns why it is none, or "".
Result<std::string> TextCodec::add_turn(const Conversation& conversation, std::size_t turn,
                                        SupervisedTokens& tokens) const {
  const auto up_to = [&conversation](std::size_t end) {
    return Conversation{first_messages(conversation.messages, end), conversation.tools};
  };
  TIDEMILL_ASSIGN_OR_RETURN(const auto before,
                            rendered_ids(up_to(turn), Ending::kGenerationPrompt));
  TIDEMILL_ASSIGN_OR_RETURN(const auto after, rendered_ids(up_to(turn + 1), Ending::kPlain));
  const std::string name = "message " + std::to_string(turn + 1);
  if (!begins_with(tokens.ids, after) || after.size() < before.size()) {
    return "the chat template renders " + name + " differently if more messages follow";
  }
  if (!begins_with(tokens.ids, before)) {
    return "the chat template renders " + name +
           " without the header that it gives the model to continue";
  }
  std::fill(tokens.loss_mask.begin() + static_cast<std::ptrdiff_t>(before.size()),
            tokens.loss_mask.begin() + static_cast<std::ptrdiff_t>(after.size()), 1);
  return std::string();
}

Result<SupervisedTokens> TextCodec::supervised_messages(const Conversation& conversation) const {
  if (marks_generation_) {
    return marked_messages(conversation);
  }
  const List& list = conversation.messages;
  SupervisedTokens tokens;
  TIDEMILL_ASSIGN_OR_RETURN(tokens.ids, rendered_ids(conversation, Ending::kPlain));
  tokens.loss_mask.assign(tokens.ids.size(), 0);
  std::string problem;  // of the last turn
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!has_role(list[i], "assistant") || is_excluded(list[i])) {
      continue;
    }
    TIDEMILL_ASSIGN_OR_RETURN(problem, add_turn(conversation, i, tokens));
    tokens.turns_left_out += problem.empty() ? 0 : 1;
  }
  if (!problem.empty()) {
    return invalid_argument(problem +
                            ", so its tokens cannot be found; put {% generation %} and "
                            "{% endgeneration %} around the assistant's text in the template, or "
                            "use input_ids and loss_mask");
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
Result<SupervisedTokens> TextCodec::supervised_chat(Conversation prompt,
                                                    const List& continuation) const {
  Conversation whole = prompt;
  whole.messages.insert(whole.messages.end(), continuation.begin(), continuation.end());
  whole.messages = with_system(std::move(whole.messages));
  prompt.messages = first_messages(whole.messages, whole.messages.size() - continuation.size());
  TIDEMILL_ASSIGN_OR_RETURN(const std::string before, render(prompt, Ending::kGenerationPrompt));
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
      case Kind::kTokens: return SupervisedTokens{row.input_ids, row.loss_mask, 0};
      case Kind::kMessages: {
        TIDEMILL_ASSIGN_OR_RETURN(Conversation whole, conversation(row.messages, row.tools));
        whole.messages = with_system(std::move(whole.messages));
        return supervised_messages(whole);
      }
      case Kind::kText: return supervised_text(row.text);
      case Kind::kContinuedText:
        return options_.prompts_as_messages
                   ? supervised_chat({List{make_message("user", row.prompt)}},
                                     {make_message("assistant", row.continuation)})
                   : supervised_continuation(row.prompt, row.continuation);
      case Kind::kContinuedChat: {
        TIDEMILL_ASSIGN_OR_RETURN(Conversation prompt, conversation(row.messages, row.tools));
        TIDEMILL_ASSIGN_OR_RETURN(const List continuation, messages_from(row.continuation));
        return supervised_chat(std::move(prompt), continuation);
      }
      case Kind::kPromptAnswer:
        return options_.prompts_as_messages
                   ? supervised_messages(
                         {with_system({make_message("user", row.prompt),
                                       make_message("assistant", row.reference_answer)})})
                   : supervised_answer(row.prompt, row.reference_answer);
    }
    return Status(Errc::kInternal, "unknown kind of row");
  }();
  return tokens.ok() ? std::move(tokens) : tokens.status().with_context(row.location.to_string());
}

}  // namespace tidemill::actors
