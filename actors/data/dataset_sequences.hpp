// SPDX-License-Identifier: Apache-2.0
// Sequences for the supervised trainer, read from a data set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/data/dataset_prompts.hpp"
#include "actors/data/text_codec.hpp"
#include "actors/supervised/spawn.hpp"
#include "storage/dataset/dataset.hpp"

namespace tidemill::actors {

/// How sequences are read.
struct DatasetSequenceOptions {
  std::int64_t max_tokens = 0;
  OnLongPrompt on_long = OnLongPrompt::kError;  // kSkip: masks them
  std::int64_t vocab_size = 0;
  /// Where the tokenizer is; loaded only when a row needs one.
  std::string model_path;
  std::string now;
  ChatForm chat;
  /// What the data is called where none of it teaches anything.
  std::string key = "data.train";
  /// Is told in one line how many sequences are too long, and what becomes of them; may be empty.
  std::function<void(const std::string&)> log;
  /// Is told of every row, once, how many rows it takes in training; may be empty.
  std::function<void(std::int64_t)> on_rows;
};

/// Makes a reader of `data`, whose positions are the draws. Reads every row once, so that a bad one
/// is known before the first step; cost: tokenizes all rows.
/// Errors: of the tokenizer, when a row needs one; of rows, as of `read`: naming file and line;
/// `kInvalidArgument` naming the key when no row has a target.
[[nodiscard]] Result<std::shared_ptr<SequenceReader>> make_dataset_sequence_reader(
    std::shared_ptr<storage::SupervisedDataset> data, DatasetSequenceOptions options);

}  // namespace tidemill::actors
