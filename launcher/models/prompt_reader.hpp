// SPDX-License-Identifier: Apache-2.0
// Lines of ids, prompts or conversations as token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/models/chat_renderer.hpp"
#include "launcher/models/line_reader.hpp"

namespace CLI {
class App;
}

namespace tidemill::launcher {

/// How a command's input becomes conversations; filled by the command line.
struct PromptForm {
  bool chat = false;   // a prompt is what the user says
  std::string system;  // before conversations that do not begin with a system message
  /// Of conversations that do not say themselves whether an answer's header comes last.
  engines::chat::Ending ending = engines::chat::Ending::kGenerationPrompt;

  /// Declares `--chat` and `--system`.
  void declare(CLI::App& app);
};

/// Turns lines into token ids: of `ids`, of a `prompt`, or of `messages`, which go through the
/// model's chat template.
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

  /// Errors: naming the line.
  [[nodiscard]] Result<std::vector<std::int32_t>> read(const InputLine& line);

private:
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(const std::string& text,
                                                         engines::AddSpecialTokens special,
                                                         const std::string& place) const;
  [[nodiscard]] Result<std::vector<std::int32_t>> from_prompt(const std::string& prompt,
                                                              const std::string& place);
  [[nodiscard]] Result<std::vector<std::int32_t>> from_chat(engines::chat::ChatRequest chat,
                                                            const std::string& place);

  std::string model_;
  engines::Tokenizer tokenizer_;
  std::int64_t vocab_size_;
  PromptForm form_;
  std::optional<ChatRenderer> renderer_;  // most inputs have no conversations
};

}  // namespace tidemill::launcher
