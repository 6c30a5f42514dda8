// SPDX-License-Identifier: Apache-2.0
// Fuzzes files of rows: JSON Lines, JSON arrays and Parquet. The input is read as rows with prompts
// and as rows for supervised training. Its first line is also parsed as a request to a chat
// template.
#include <string>

#include "engines/chat/chat_template.hpp"
#include "storage/dataset/dataset.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

using storage::Dataset;
using storage::DatasetOptions;
using storage::OnRowError;

// Checks the messages of a row. A template parses them long after the row was checked.
void require_conversation(const std::string& messages) {
  const auto value = engines::chat::Value::parse_json(messages);
  require_ok(value.status(), "messages of a row can be parsed");
  require(value.value().is_sequence() && !value.value().as_sequence().items.empty(),
          "messages of a row are a non-empty list");
}

void require_sound(const storage::PromptRow& row) {
  require(row.prompt.empty() != row.messages.empty(), "a row has a prompt or messages");
  require(row.fields.find('\n') == std::string::npos, "the fields of a row are one line");
  if (!row.messages.empty()) {
    require_conversation(row.messages);
  }
}

void require_sound(const storage::SupervisedRow& row) {
  switch (row.kind) {
    case storage::SupervisedRow::Kind::kPromptAnswer:
      require(!row.prompt.empty() && !row.reference_answer.empty(), "a row has prompt and answer");
      break;
    case storage::SupervisedRow::Kind::kText: require(!row.text.empty(), "a row has text"); break;
    case storage::SupervisedRow::Kind::kContinuedText:
      require(!row.prompt.empty() && !row.continuation.empty(), "a row has both parts of a text");
      break;
    case storage::SupervisedRow::Kind::kMessages: require_conversation(row.messages); break;
    case storage::SupervisedRow::Kind::kContinuedChat:
      require_conversation(row.messages);
      require_conversation(row.continuation);
      break;
    case storage::SupervisedRow::Kind::kTokens:
      require(!row.input_ids.empty() && row.input_ids.size() == row.loss_mask.size(),
              "each token has a mask");
      break;
  }
}

template <class Row>
void read_as(const std::string& path) {
  DatasetOptions options;
  options.paths = {path};
  options.max_line_bytes = 1024;
  options.max_rows = 64;
  options.on_error = OnRowError::kSkip;
  const auto rows = Dataset<Row>::open(options);
  if (!rows.ok()) {
    require_refusal(rows.status(), "");
    return;
  }
  for (std::uint64_t i = 0; i < rows.value()->num_rows(); ++i) {
    const auto row = rows.value()->row_in_file_order(i);
    require_ok(row.status(), "a row that was checked can be read");
    require_sound(row.value());
    require(rows.value()->row_at(i).ok(), "every position of an epoch has its row");
  }
  if (rows.value()->num_skipped() > 0) {
    options.on_error = OnRowError::kError;
    require_refusal(Dataset<Row>::open(options).status(), path + ":");
  }
}

}  // namespace

void dataset_rows(std::string_view input) {
  static MemoryFile file;
  file.fill(input);
  const auto request = engines::chat::ChatRequest::from_json(input.substr(0, input.find('\n')));
  if (!request.ok()) {
    require_refusal(request.status(), "");
  }
  read_as<storage::PromptRow>(file.path());
  read_as<storage::SupervisedRow>(file.path());
}

}  // namespace tidemill::fuzz
