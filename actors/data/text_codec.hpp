// SPDX-License-Identifier: Apache-2.0
// Between the rows of a data set and the token ids of a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::actors {

/// Token ids to learn from.
struct SupervisedTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> loss_mask;  // 1: a target; index 0 is unused
};

/// How rows become a conversation.
struct ChatForm {
  /// A row's prompt is what the user says, through the chat template, and its answer what the
  /// assistant says; else both are text as they stand.
  bool prompts_as_messages = false;
  /// Stands before messages that do not begin with a system message; empty: nothing does.
  std::string system;
};

/// A model's tokenizer and chat template.
///
/// Threads: safe to use concurrently.
class TextCodec {
public:
  /// Loads the tokenizer files of the model directory `path`. `now` is the clock that templates
  /// read, "YYYY-MM-DDTHH:MM:SS".
  /// Errors: naming file and field.
  [[nodiscard]] static Result<TextCodec> load(const std::filesystem::path& path, std::string now,
                                              ChatForm form = {});

  /// Returns the ids that stand before an answer: of the prompt as it is, with the special tokens
  /// that the tokenizer puts around texts; or of the rendered messages.
  /// Errors: `kInvalidArgument` beginning with the row's place, so for a text without the
  /// conversation that `ChatForm::system` is to begin.
  [[nodiscard]] Result<std::vector<std::int32_t>> prompt_ids(const storage::PromptRow& row) const;

  /// Returns what a row teaches: the answer and the end token behind it, or what the assistant says
  /// in the messages, or the ready tokens.
  /// Errors: `kInvalidArgument` beginning with the row's place.
  [[nodiscard]] Result<SupervisedTokens> supervised(const storage::SupervisedRow& row) const;

  /// Returns the text of a response, without special tokens.
  [[nodiscard]] std::string decode(const std::vector<std::int32_t>& ids) const {
    return tokenizer_.decode(ids, engines::SpecialTokenText::kDrop);
  }

  [[nodiscard]] const engines::Tokenizer& tokenizer() const noexcept { return tokenizer_; }

private:
  TextCodec(engines::Tokenizer tokenizer, std::string now, ChatForm form)
      : tokenizer_(std::move(tokenizer)), now_(std::move(now)), form_(std::move(form)) {}

  [[nodiscard]] Status check_no_system() const;
  [[nodiscard]] Result<std::string> render(const engines::chat::Value& messages,
                                           engines::chat::Ending ending) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_messages(
      const engines::chat::Value& messages) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_answer(const std::string& prompt,
                                                           const std::string& answer) const;

  engines::Tokenizer tokenizer_;
  std::optional<engines::chat::ChatTemplate> template_;
  std::string now_;
  ChatForm form_;
};

}  // namespace tidemill::actors
