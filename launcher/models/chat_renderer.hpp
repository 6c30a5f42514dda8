// SPDX-License-Identifier: Apache-2.0
// The chat template that a model directory brings, with the variables that belong to it.
#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer_config.hpp"

namespace tidemill::launcher {

/// Turns conversations into text as the files of a model say.
class ChatRenderer {
public:
  /// Makes a renderer of `config`'s template, or of the one in `template_file`. `model` is what
  /// errors call the directory.
  /// Errors: `kNotFound` without any template; `kInvalidArgument` naming file and line of a broken
  /// one; as `read_text_file`.
  [[nodiscard]] static Result<ChatRenderer> open(const std::string& model,
                                                 engines::TokenizerConfig config,
                                                 const std::optional<std::string>& template_file);

  /// Renders `request`. Variables bos_token, eos_token and pad_token are the tokenizer's unless the
  /// request has them; a request without `now` means this moment. Errors: as
  /// `ChatTemplate::render`.
  [[nodiscard]] Result<std::string> render(engines::chat::ChatRequest request) const;

private:
  ChatRenderer(engines::TokenizerConfig config, engines::chat::ChatTemplate chat)
      : config_(std::move(config)), template_(std::move(chat)) {}

  engines::TokenizerConfig config_;
  engines::chat::ChatTemplate template_;
};

}  // namespace tidemill::launcher
