// SPDX-License-Identifier: Apache-2.0
// What a user may say about the data of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill::storage {

/// What to do with a row that cannot be used.
enum class OnRowError : std::uint8_t {
  kError,  // refuse the data set, naming file and line
  kSkip,   // leave the row out and count it
};

/// In which order an epoch visits the rows.
enum class RowOrder : std::uint8_t {
  kAsFiled,   // files by name, rows as they stand
  kShuffled,  // another order in each epoch, given by (seed, epoch)
};

/// Describes a data set.
struct DatasetOptions {
  /// JSONL files or globs. All matching files are read, each once, ordered by path.
  std::vector<std::string> paths;
  /// Empty, or a weight for each of `paths`, finite and > 0: rows are then drawn from what each
  /// path names in proportion to the weights, whatever the numbers of their rows.
  std::vector<double> weights;
  OnRowError on_error = OnRowError::kError;
  RowOrder order = RowOrder::kShuffled;
  std::uint64_t seed = 0;
  /// How often the rows are visited; 0: without end.
  std::uint64_t epochs = 0;
  /// Longest line, in bytes; > 0.
  std::uint64_t max_line_bytes = 16ULL << 20U;
  /// Most rows; the index takes 24 bytes for each, the shuffle another 4.
  std::uint64_t max_rows = 50'000'000;
};

}  // namespace tidemill::storage
