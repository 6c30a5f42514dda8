// SPDX-License-Identifier: Apache-2.0
// Renders conversations with the chat template of a model directory.
#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer_config.hpp"

namespace tidemill::engines::chat {

/// Turns conversations into text, with the template and the special tokens of a model.
class ChatRenderer {
public:
  /// Makes a renderer of the template in `config`, or of the one in `template_file`. `model` names
  /// the directory in error messages.
  /// Errors: `kNotFound` if there is no template; `kInvalidArgument` naming file and line of an
  /// invalid one; those of `read_text_file`.
  [[nodiscard]] static Result<ChatRenderer> open(const std::string& model, TokenizerConfig config,
                                                 const std::optional<std::string>& template_file);

  /// Renders `request`. The variables bos_token, eos_token and pad_token come from the tokenizer
  /// unless the request sets them. The default of `now` is the current time.
  /// Errors: those of `ChatTemplate::render`.
  [[nodiscard]] Result<std::string> render(ChatRequest request) const;

  /// Returns whether the text of the template contains `name`, such as a variable or a tag.
  [[nodiscard]] bool mentions(const std::string& name) const;
  /// Returns whether the template renders contents that are lists of text parts by itself.
  [[nodiscard]] bool renders_parts() const;

private:
  ChatRenderer(TokenizerConfig config, ChatTemplate chat, std::string text)
      : config_(std::move(config)), template_(std::move(chat)), text_(std::move(text)) {}

  // Adds the special tokens and the time.
  [[nodiscard]] ChatRequest completed(ChatRequest request) const;

  TokenizerConfig config_;
  ChatTemplate template_;
  std::string text_;  // of the template
};

}  // namespace tidemill::engines::chat
