// SPDX-License-Identifier: Apache-2.0
// The rows of a data set, as plain structs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill::storage {

/// The location of a row, as errors print it: "data/train.jsonl:17".
struct RowLocation {
  std::string file;
  std::uint64_t line = 0;  // from 1; in a Parquet file the number of the row
  [[nodiscard]] std::string to_string() const { return file + ":" + std::to_string(line); }
};

/// A row to generate responses for: `{"prompt": "…", "answer": "…"}` or `{"messages": […],
/// "answer": "…"}`; a prompt may also be a list of messages. All other keys are kept in `fields`.
struct PromptRow {
  std::string prompt;            // empty if the row has messages
  std::string messages;          // JSON array, keys in file order; empty if the row has a prompt
  std::string reference_answer;  // empty if the row has none
  std::string fields;            // the whole row: a JSON object as in the file, but on one line
  RowLocation location;
  std::string tools = {};  // JSON array of functions for the chat template; empty: none
};

/// A row to train on; `kind` says which members are set.
struct SupervisedRow {
  enum class Kind : std::uint8_t {
    kText,           // text, all of which is a target
    kPromptAnswer,   // prompt, reference_answer
    kContinuedText,  // prompt, continuation: two parts of one text
    kMessages,       // messages, at least one from the assistant without "weight": 0
    kContinuedChat,  // messages, continuation: two parts of one conversation
    kTokens,         // input_ids and loss_mask of equal length, at least 1
  };
  Kind kind = Kind::kPromptAnswer;
  std::string text;
  std::string prompt;
  std::string reference_answer;
  std::string messages;                 // JSON array, keys in file order
  std::string continuation;             // the member `completion`: a text, or a JSON array
  std::vector<std::int32_t> input_ids;  // >= 0
  std::vector<std::uint8_t> loss_mask;  // 1: the token is a target; index 0 is unused
  RowLocation location;
  std::string tools = {};  // JSON array of functions for the chat template; empty: none
};

}  // namespace tidemill::storage
