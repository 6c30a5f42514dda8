// SPDX-License-Identifier: Apache-2.0
#include "launcher/models/prompt_reader.hpp"

#include <CLI/App.hpp>

#include "engines/chat/conversation.hpp"
#include "launcher/models/model_arguments.hpp"

namespace tidemill::launcher {
namespace {

using engines::AddSpecialTokens;
using engines::chat::ChatRequest;
using engines::chat::Ending;
using engines::chat::Value;

}  // namespace

void PromptForm::declare(CLI::App& app) {
  app.add_flag("--chat", chat,
               "Render prompts with the model's chat template, as messages of the user");
  app.add_option("--system", system, "System message for conversations that have none (see --chat)")
      ->type_name("TEXT");
}

Result<std::vector<std::int32_t>> PromptReader::read(const InputLine& line) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_line(line));
  TIDEMILL_ASSIGN_OR_RETURN(auto ids, read_ids(object, line.location));
  const Json* prompt = object.find("prompt");
  const Json* messages = object.find("messages");
  if (int{ids.has_value()} + int{prompt != nullptr} + int{messages != nullptr} != 1) {
    return invalid_argument(line.location + ": needs exactly one of ids, prompt and messages");
  }
  if (ids.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(check_ids(*ids, vocab_size_, line.location));
  } else if (messages != nullptr) {
    auto request = ChatRequest::from_json(line.text);
    if (!request.ok()) {
      return request.status().with_context(line.location);
    }
    ChatRequest chat = std::move(request).value();
    if (chat.ending == Ending::kPlain && object.find("add_generation_prompt") == nullptr) {
      chat.ending = form_.ending;
    }
    TIDEMILL_ASSIGN_OR_RETURN(ids, from_chat(std::move(chat), line.location));
  } else if (prompt != nullptr) {
    if (prompt->if_string() == nullptr) {
      return invalid_argument(line.location + ": prompt: must be a string");
    }
    TIDEMILL_ASSIGN_OR_RETURN(ids, from_prompt(*prompt->if_string(), line.location));
  }
  if (ids->empty()) {
    return invalid_argument(line.location + ": the prompt has no tokens");
  }
  return std::move(*ids);
}

Result<std::vector<std::int32_t>> PromptReader::encode(const std::string& text,
                                                       AddSpecialTokens special,
                                                       const std::string& location) const {
  auto ids = tokenizer_.encode(text, special);
  return ids.ok() ? std::move(ids) : ids.status().with_context(location);
}

Result<std::vector<std::int32_t>> PromptReader::from_prompt(const std::string& prompt,
                                                            const std::string& location) {
  if (!form_.chat) {
    if (!form_.system.empty()) {
      return invalid_argument(
          location + ": prompt: --system needs a conversation; add --chat, or give messages");
    }
    return encode(prompt, AddSpecialTokens::kYes, location + ": prompt");
  }
  ChatRequest chat;
  chat.messages = Value::sequence({engines::chat::make_message("user", prompt)});
  chat.ending = form_.ending;
  return from_chat(std::move(chat), location);
}

Result<std::vector<std::int32_t>> PromptReader::from_chat(ChatRequest chat,
                                                          const std::string& location) {
  if (!renderer_.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(
        renderer_, engines::chat::ChatRenderer::open(model_, tokenizer_.config(), std::nullopt));
  }
  if (chat.messages.is_sequence()) {
    engines::chat::List messages = chat.messages.as_sequence().items;
    if (!renderer_->renders_parts()) {
      messages = engines::chat::with_joined_parts(std::move(messages));
    }
    chat.messages = engines::chat::with_system_message(std::move(messages), form_.system);
  }
  const auto text = renderer_->render(std::move(chat));
  if (!text.ok()) {
    return text.status().with_context(location + ": chat template");
  }
  // The template has written the special tokens itself.
  return encode(text.value(), AddSpecialTokens::kNo, location + ": messages");
}

}  // namespace tidemill::launcher
