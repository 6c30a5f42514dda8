// SPDX-License-Identifier: Apache-2.0
// Converts between rows of a data set and token ids of a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::actors {

/// Token ids to train on.
struct SupervisedTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> loss_mask;  // 1: a target; index 0 is unused
  /// The number of the assistant's turns that are not targets, because the chat template renders
  /// them differently once more messages follow.
  std::size_t turns_left_out = 0;
};

/// How rows are turned into conversations.
struct ChatOptions {
  /// If set, a row's prompt becomes a user message and its reference answer an assistant message,
  /// both rendered by the chat template. Otherwise both are used as plain text.
  bool prompts_as_messages = false;
  /// The system message that is put before messages that do not begin with one. None if empty.
  std::string system;
  /// A JSON object whose members are variables of the chat template. None if empty.
  std::string variables = {};
};

/// A model's tokenizer and chat template.
///
/// Threads: safe to use concurrently.
class TextCodec {
public:
  /// Loads the tokenizer files of the model directory `path`. `now` is the time that chat templates
  /// read, "YYYY-MM-DDTHH:MM:SS".
  /// Errors: naming file and field, or `data.chat_template_kwargs`.
  [[nodiscard]] static Result<TextCodec> load(const std::filesystem::path& path, std::string now,
                                              ChatOptions options = {});

  /// Returns the ids of a row's prompt, which precede the response: those of the plain text with
  /// the special tokens that the tokenizer adds, or those of the rendered messages.
  /// Errors: `kInvalidArgument` beginning with the row's location, also for plain text if
  /// `ChatOptions::system` is set.
  [[nodiscard]] Result<std::vector<std::int32_t>> prompt_ids(const storage::PromptRow& row) const;

  /// Returns the ids of a row and its targets: all of a text; the reference answer or the
  /// continuation; the assistant's turns of the messages; or those of the ready tokens. The end
  /// token follows a text, an answer and a continuation. A chat template ends its turns itself.
  /// If it has {% generation %} tags, the tokens inside them are the targets of messages.
  /// Otherwise a turn is a target if the text up to its end begins the text of all messages; the
  /// last turn must be one. A message whose `weight` is 0 is no target.
  /// Errors: `kInvalidArgument` beginning with the row's location.
  [[nodiscard]] Result<SupervisedTokens> supervised(const storage::SupervisedRow& row) const;

  /// Returns the text of a response, without special tokens.
  [[nodiscard]] std::string decode(const std::vector<std::int32_t>& ids) const {
    return tokenizer_.decode(ids, engines::SpecialTokenText::kDrop);
  }

  [[nodiscard]] const engines::Tokenizer& tokenizer() const noexcept { return tokenizer_; }

private:
  // What a chat template renders.
  struct Conversation {
    engines::chat::List messages;
    engines::chat::Value tools = {};  // a list of mappings, or none
  };

  TextCodec(engines::Tokenizer tokenizer, std::string now, ChatOptions options)
      : tokenizer_(std::move(tokenizer)), now_(std::move(now)), options_(std::move(options)) {}

  [[nodiscard]] Status check_no_system() const;
  [[nodiscard]] Status parse_variables();
  [[nodiscard]] Status parse_template(const std::string& text);
  [[nodiscard]] engines::chat::ChatRequest request() const;
  [[nodiscard]] Result<engines::chat::List> messages_from(const std::string& json) const;
  [[nodiscard]] Result<Conversation> conversation(const std::string& messages,
                                                  const std::string& tools) const;
  [[nodiscard]] engines::chat::List with_system(engines::chat::List messages) const;
  [[nodiscard]] Result<engines::chat::Value> tools_from(const std::string& json) const;
  [[nodiscard]] Result<engines::chat::Rendering> rendering(const Conversation& conversation,
                                                           engines::chat::Ending ending) const;
  [[nodiscard]] Result<std::string> render(const Conversation& conversation,
                                           engines::chat::Ending ending) const;
  [[nodiscard]] Result<std::vector<std::int32_t>> rendered_ids(const Conversation& conversation,
                                                               engines::chat::Ending ending) const;
  [[nodiscard]] Result<SupervisedTokens> marked_messages(const Conversation& conversation) const;
  [[nodiscard]] Result<std::string> add_turn(const Conversation& conversation, std::size_t turn,
                                             SupervisedTokens& tokens) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_messages(
      const Conversation& conversation) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_answer(const std::string& prompt,
                                                           const std::string& answer) const;
  [[nodiscard]] std::string with_end_token(std::string text) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_text(const std::string& text) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_continuation(
      const std::string& prompt, const std::string& continuation) const;
  [[nodiscard]] Result<SupervisedTokens> supervised_chat(
      Conversation prompt, const engines::chat::List& continuation) const;

  engines::Tokenizer tokenizer_;
  std::optional<engines::chat::ChatTemplate> template_;
  bool knows_tools_ = false;       // the template mentions `tools`
  bool knows_calls_ = false;       // it mentions `tool_calls`
  bool marks_generation_ = false;  // it has {% generation %} tags
  bool renders_parts_ = false;     // it renders contents that are lists of text parts
  std::vector<std::pair<std::string, engines::chat::Value>> variables_;
  std::string now_;
  ChatOptions options_;
};

}  // namespace tidemill::actors
