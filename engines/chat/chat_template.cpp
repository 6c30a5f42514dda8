// SPDX-License-Identifier: Apache-2.0
// The interface of the template engine: it cleans up requests and converts exceptions to statuses.
#include "engines/chat/chat_template.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <stdexcept>

#include "base/text/clip.hpp"
#include "base/text/utf8.hpp"
#include "engines/chat/budget.hpp"
#include "engines/chat/interpreter.hpp"
#include "engines/chat/lexer.hpp"
#include "engines/chat/parser.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::array<std::string_view, 3> kReasoningKeys = {"reasoning_content", "thinking",
                                                            "reasoning"};
// Appended to the last message to find the end of its content. The trailing space shows whether the
// template keeps the white space at the end of a message.
constexpr std::string_view kContinueMark = "CONTINUE_FINAL_MESSAGE_TAG ";

// Shortens a message to one line. Messages may quote names and text of the template.
std::string on_one_line(std::string_view text) {
  constexpr std::size_t kMaxBytes = 400;
  std::string repaired;
  static_cast<void>(append_repaired_utf8(text, repaired));
  return clipped(repaired, kMaxBytes);
}

// Converts an error. The message of raise_exception is not changed.
Status to_status(const TemplateError& error) {
  const bool is_limit = error.kind() == TemplateError::Kind::kLimit;
  const bool is_raised = error.kind() == TemplateError::Kind::kRaised;
  return {is_limit ? Errc::kResourceExhausted : Errc::kInvalidArgument,
          "line " + std::to_string(error.line()) + ": " +
              (is_raised ? std::string(error.what()) : on_one_line(error.what()))};
}

// Removes null members, and adds the names under which templates look for reasoning.
Value clean_message(const Dict& message) {
  const Value* reasoning = nullptr;
  for (const std::string_view key : kReasoningKeys) {
    const Value* value = message.member(key);
    if (reasoning == nullptr && value != nullptr && !value->is_none()) {
      reasoning = value;
    }
  }
  Dict cleaned;
  if (reasoning != nullptr) {
    cleaned.insert(Value("thinking"), *reasoning);
  }
  for (const Dict::Entry& entry : message.entries()) {
    if (!entry.value.is_none()) {
      cleaned.insert(entry.key, entry.value);
    }
  }
  if (reasoning != nullptr) {
    cleaned.insert(Value("reasoning_content"), *reasoning);
  }
  return Value(std::move(cleaned));
}

Result<List> clean_messages(const Value& messages) {
  if (!messages.is_sequence() || messages.as_sequence().items.empty()) {
    return invalid_argument("messages: must be a non-empty list of messages");
  }
  List cleaned;
  for (const Value& message : messages.as_sequence().items) {
    if (!message.is_dict()) {
      return invalid_argument("messages[" + std::to_string(cleaned.size()) +
                              "]: must be an object");
    }
    cleaned.push_back(clean_message(message.as_dict()));
  }
  return cleaned;
}

Value with_member(const Dict& dict, std::string_view key, Value value) {
  Dict changed = dict;
  changed.insert(Value(key), std::move(value));
  return Value(std::move(changed));
}

// Appends the mark to the content of `message`, or to its last text part if the content has parts.
// Returns the previous content.
Result<std::string> mark_content(Value& message) {
  const Value* content = message.as_dict().member("content");
  const Status nothing =
      invalid_argument("continue_final_message: the last message has no text to continue");
  if (content == nullptr) {
    return nothing;
  }
  if (content->is_string()) {
    std::string text = content->as_string();
    message = with_member(message.as_dict(), "content", Value(text + std::string(kContinueMark)));
    return text;
  }
  if (!content->is_sequence()) {
    return nothing;
  }
  List parts = content->as_sequence().items;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Value* text = parts[i].is_dict() ? parts[i].as_dict().member("text") : nullptr;
    if (text == nullptr || !text->is_string()) {
      continue;
    }
    std::string before = text->as_string();
    parts[i] = with_member(parts[i].as_dict(), "text", Value(before + std::string(kContinueMark)));
    message = with_member(message.as_dict(), "content", Value::sequence(std::move(parts)));
    return before;
  }
  return nothing;
}

// Cuts the text at the mark, and limits the generation spans to the remaining text.
Status cut_at_mark(const std::string& content, Rendering& rendering) {
  const std::string_view bare = strip(kContinueMark);
  const std::size_t at = find_last_text(rendering.text, bare);
  if (at == std::string_view::npos ||
      find_text(rendering.text, strip(content), 0) == std::string_view::npos) {
    return invalid_argument(
        "continue_final_message: the template does not render the whole last message");
  }
  const bool keeps_space = rendering.text.compare(at, kContinueMark.size(), kContinueMark) == 0;
  rendering.text.resize(at);
  if (!keeps_space) {
    rendering.text.resize(strip(rendering.text, StripEnds::kRight).size());
  }
  const std::size_t length = count_code_points(rendering.text);
  for (CodePointSpan& span : rendering.generation_spans) {
    span.begin = std::min(span.begin, length);
    span.end = std::min(span.end, length);
  }
  return {};
}

Result<std::string> string_member(const Value& value, std::string_view name) {
  if (!value.is_string()) {
    return invalid_argument(std::string(name) + ": must be a string");
  }
  return value.as_string();
}

Result<bool> bool_member(const Value& value, std::string_view name) {
  if (!value.is(Value::Kind::kBool)) {
    return invalid_argument(std::string(name) + ": must be true or false");
  }
  return value.as_bool();
}

}  // namespace

struct ChatTemplate::Parsed {
  Body body;
};

Result<ChatRequest> ChatRequest::from_json(std::string_view text) {
  TIDEMILL_ASSIGN_OR_RETURN(const Value root, Value::parse_json(text));
  if (!root.is_dict()) {
    return invalid_argument("the request must be a JSON object");
  }
  ChatRequest request;
  bool add_generation_prompt = false;
  bool continue_final = false;
  for (const Dict::Entry& entry : root.as_dict().entries()) {
    const std::string& name = entry.key.as_string();
    const Value& value = entry.value;
    if (name == "messages") {
      request.messages = value;
    } else if (name == "tools") {
      request.tools = value;
    } else if (name == "documents") {
      request.documents = value;
    } else if (name == "now") {
      TIDEMILL_ASSIGN_OR_RETURN(request.now, string_member(value, name));
    } else if (name == "add_generation_prompt") {
      TIDEMILL_ASSIGN_OR_RETURN(add_generation_prompt, bool_member(value, name));
    } else if (name == "continue_final_message") {
      TIDEMILL_ASSIGN_OR_RETURN(continue_final, bool_member(value, name));
    } else {
      request.variables.emplace_back(name, value);
    }
  }
  if (add_generation_prompt && continue_final) {
    return invalid_argument(
        "continue_final_message: cannot be combined with add_generation_prompt");
  }
  request.ending = continue_final          ? Ending::kContinueFinal
                   : add_generation_prompt ? Ending::kGenerationPrompt
                                           : Ending::kPlain;
  return request;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return invalid_argument("line 1: the template is larger than " + std::to_string(kMaxBytes) +
                            " bytes");
  }
  if (const auto bad = find_invalid_utf8(text)) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*bad), '\n');
    return invalid_argument("line " + std::to_string(line) + ": not valid UTF-8");
  }
  try {
    auto parsed = std::make_shared<Parsed>();
    parsed->body = parse_template(tokenize_template(text));
    return ChatTemplate(std::move(parsed));
  } catch (const TemplateError& error) {
    return Status(Errc::kInvalidArgument, to_status(error).message());
  }
}

Result<Rendering> ChatTemplate::render(const ChatRequest& request) const {
  TIDEMILL_ASSIGN_OR_RETURN(List messages, clean_messages(request.messages));
  std::string content;
  if (request.ending == Ending::kContinueFinal) {
    TIDEMILL_ASSIGN_OR_RETURN(content, mark_content(messages.back()));
  }
  std::vector<std::pair<std::string, Value>> variables = request.variables;
  variables.emplace_back("messages", Value::sequence(std::move(messages)));
  variables.emplace_back("tools", request.tools);
  variables.emplace_back("documents", request.documents);
  variables.emplace_back("add_generation_prompt", request.ending == Ending::kGenerationPrompt);
  try {
    Rendering rendering = run_template(parsed_->body, variables, request.now);
    if (request.ending == Ending::kContinueFinal) {
      TIDEMILL_RETURN_IF_ERROR(cut_at_mark(content, rendering));
    }
    return rendering;
  } catch (const TemplateError& error) {
    return to_status(error);
  } catch (const std::bad_alloc&) {
    return Status(Errc::kResourceExhausted, "not enough memory to render the template");
  }
}

}  // namespace tidemill::engines::chat
