// SPDX-License-Identifier: Apache-2.0
// The rows of a data set, as plain structs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill::storage {

/// Where a row stands, as errors print it: "data/train.jsonl:17".
struct RowPlace {
  std::string file;
  std::uint64_t line = 0;  // from 1
  [[nodiscard]] std::string to_string() const { return file + ":" + std::to_string(line); }
};

/// A row to generate answers for: `{"prompt": "…", "answer": "…"}` or `{"messages": […], "answer":
/// "…"}`; every other key is kept in `fields`.
struct PromptRow {
  std::string prompt;    // empty when the row has messages
  std::string messages;  // JSON array, keys in the file's order; empty when the row has a prompt
  std::string answer;    // the reference answer; empty when the row has none
  std::string fields;    // the whole row: a JSON object, as it stands in the file
  RowPlace place;
};

/// A row to learn from; `kind` says which members are set.
struct SupervisedRow {
  enum class Kind : std::uint8_t {
    kPromptAnswer,  // prompt, answer
    kMessages,      // messages, at least one of them by the assistant
    kTokens,        // input_ids, loss_mask: as many, at least one
  };
  Kind kind = Kind::kPromptAnswer;
  std::string prompt;
  std::string answer;
  std::string messages;                 // JSON array, keys in the file's order
  std::vector<std::int32_t> input_ids;  // >= 0
  std::vector<std::uint8_t> loss_mask;  // 1: the token is a target; index 0 is unused
  RowPlace place;
};

}  // namespace tidemill::storage
