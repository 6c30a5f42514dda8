// SPDX-License-Identifier: Apache-2.0
#include "engines/chat/chat_renderer.hpp"

#include <ctime>

#include "base/files/file.hpp"
#include "base/text/time_text.hpp"
#include "engines/chat/conversation.hpp"

namespace tidemill::engines::chat {

Result<ChatRenderer> ChatRenderer::open(const std::string& model, TokenizerConfig config,
                                        const std::optional<std::string>& template_file) {
  std::string text;
  std::string location = model + ": chat template";
  if (template_file.has_value()) {
    location = *template_file;
    TIDEMILL_ASSIGN_OR_RETURN(text, tidemill::read_text_file(location, ChatTemplate::kMaxBytes));
  } else {
    const auto found = config.chat_templates.find("default");
    if (found == config.chat_templates.end()) {
      return Status(Errc::kNotFound, model + ": has no chat template");
    }
    text = found->second;
  }
  auto parsed = ChatTemplate::parse(text);
  if (!parsed.ok()) {
    return parsed.status().with_context(location);
  }
  return ChatRenderer(std::move(config), std::move(parsed).value(), std::move(text));
}

ChatRequest ChatRenderer::completed(ChatRequest request) const {
  std::vector<std::pair<std::string, Value>> variables;
  const auto add_token = [&](const char* name, const std::optional<std::string>& token) {
    if (token.has_value()) {
      variables.emplace_back(name, *token);
    }
  };
  add_token("bos_token", config_.bos_token);
  add_token("eos_token", config_.eos_token);
  add_token("pad_token", config_.pad_token);
  // Variables of the request come last, so they take precedence.
  variables.insert(variables.end(), request.variables.begin(), request.variables.end());
  request.variables = std::move(variables);
  if (request.now.empty()) {
    request.now = local_time_text(std::time(nullptr));
  }
  return request;
}

Result<std::string> ChatRenderer::render(ChatRequest request) const {
  TIDEMILL_ASSIGN_OR_RETURN(Rendering rendering, template_.render(completed(std::move(request))));
  return std::move(rendering.text);
}

bool ChatRenderer::mentions(const std::string& name) const {
  return text_.find(name) != std::string::npos;
}

bool ChatRenderer::renders_parts() const {
  return chat::renders_parts(template_, completed({}));
}

}  // namespace tidemill::engines::chat
