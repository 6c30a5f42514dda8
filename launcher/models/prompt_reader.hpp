// SPDX-License-Identifier: Apache-2.0
// Converts input lines with ids, prompts or conversations to token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/chat/chat_renderer.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/models/line_reader.hpp"

namespace CLI {
class App;
}

namespace tidemill::launcher {

/// How a command turns its input into conversations. Filled from the command line.
struct PromptForm {
  bool chat = false;   // a prompt becomes a user message
  std::string system;  // for conversations that do not begin with a system message
  /// Whether the header of a response is added to conversations that do not specify it themselves.
  engines::chat::Ending ending = engines::chat::Ending::kGenerationPrompt;

  /// Declares `--chat` and `--system`.
  void declare(CLI::App& app);
};

/// Converts lines to token ids. A line has `ids`, a `prompt`, or `messages`, which are rendered
/// with the model's chat template.
///
/// Threads: one call at a time.
class PromptReader {
public:
  PromptReader(std::string model, engines::Tokenizer tokenizer, std::int64_t vocab_size,
               PromptForm form)
      : model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        vocab_size_(vocab_size),
        form_(std::move(form)) {}

  /// Returns the token ids of a line. Errors: messages that name the line.
  [[nodiscard]] Result<std::vector<std::int32_t>> read(const InputLine& line);

private:
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(const std::string& text,
                                                         engines::AddSpecialTokens special,
                                                         const std::string& location) const;
  [[nodiscard]] Result<std::vector<std::int32_t>> from_prompt(const std::string& prompt,
                                                              const std::string& location);
  [[nodiscard]] Result<std::vector<std::int32_t>> from_chat(engines::chat::ChatRequest chat,
                                                            const std::string& location);

  std::string model_;
  engines::Tokenizer tokenizer_;
  std::int64_t vocab_size_;
  PromptForm form_;
  std::optional<engines::chat::ChatRenderer> renderer_;  // opened for the first conversation
};

}  // namespace tidemill::launcher
