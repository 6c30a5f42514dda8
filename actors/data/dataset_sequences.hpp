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

/// Options for reading sequences.
struct DatasetSequenceOptions {
  std::int64_t max_tokens = 0;
  OnLongPrompt on_long = OnLongPrompt::kError;  // kSkip masks sequences that are too long
  std::int64_t vocab_size = 0;
  /// The directory of the tokenizer, which is loaded only if a row needs it.
  std::string model_path;
  /// The time that chat templates read, "YYYY-MM-DDTHH:MM:SS".
  std::string now;
  ChatOptions chat;
  /// The configuration key of the data, for messages.
  std::string key = "data.train";
  /// Receives one line about how many sequences are too long and how they are handled, and one
  /// about conversations of which turns are left out. May be empty.
  std::function<void(const std::string&)> log;
  /// Called once for every row of data with the number of model rows that it takes in training. May
  /// be empty.
  std::function<void(std::int64_t, const storage::RowLocation&)> on_row;
  /// Called with the tokenizer once it is loaded. May be empty.
  std::function<void(const engines::Tokenizer&)> on_tokenizer;
};

/// Creates a reader of `data`, whose positions are the draws. Reads every row once, so that bad
/// rows are reported before the first step. This tokenizes all rows.
/// Errors: those of the tokenizer, if a row needs it; for bad rows those of `read`, which name file
/// and line; `kInvalidArgument` naming the key if no row has a target.
[[nodiscard]] Result<std::shared_ptr<SequenceReader>> make_dataset_sequence_reader(
    std::shared_ptr<storage::SupervisedDataset> data, DatasetSequenceOptions options);

}  // namespace tidemill::actors
