// SPDX-License-Identifier: Apache-2.0
// Renders conversations with the chat template of a model directory.
#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer_config.hpp"

namespace tidemill::launcher {

/// Turns conversations into text, with the template and the special tokens of a model.
class ChatRenderer {
public:
  /// Makes a renderer of the template in `config`, or of the one in `template_file`. `model` names
  /// the directory in error messages.
  /// Errors: `kNotFound` if there is no template; `kInvalidArgument` naming file and line of an
  /// invalid one; those of `read_text_file`.
  [[nodiscard]] static Result<ChatRenderer> open(const std::string& model,
                                                 engines::TokenizerConfig config,
                                                 const std::optional<std::string>& template_file);

  /// Renders `request`. The variables bos_token, eos_token and pad_token come from the tokenizer
  /// unless the request sets them. The default of `now` is the current time.
  /// Errors: those of `ChatTemplate::render`.
  [[nodiscard]] Result<std::string> render(engines::chat::ChatRequest request) const;

  /// Returns whether the template renders contents that are lists of text parts by itself.
  [[nodiscard]] bool renders_parts() const;

private:
  ChatRenderer(engines::TokenizerConfig config, engines::chat::ChatTemplate chat)
      : config_(std::move(config)), template_(std::move(chat)) {}

  // Adds the special tokens and the time.
  [[nodiscard]] engines::chat::ChatRequest completed(engines::chat::ChatRequest request) const;

  engines::TokenizerConfig config_;
  engines::chat::ChatTemplate template_;
};

}  // namespace tidemill::launcher
