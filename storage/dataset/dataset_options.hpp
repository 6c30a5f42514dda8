// SPDX-License-Identifier: Apache-2.0
// The options of a run's data.
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

/// The order in which an epoch visits the rows.
enum class RowOrder : std::uint8_t {
  kFileOrder,  // files by name, and rows in the order of their file
  kShuffled,   // a new order in each epoch, which (seed, epoch) determine
};

/// Describes a data set.
struct DatasetOptions {
  /// Files (JSON Lines, one JSON array of rows, or Parquet) or globs. All matching files are read,
  /// each once, ordered by path.
  std::vector<std::string> paths;
  /// Empty, or a weight for each of `paths`, finite and > 0. With weights, rows are drawn from the
  /// files of each path in proportion to its weight, whatever the number of their rows.
  std::vector<double> weights;
  OnRowError on_error = OnRowError::kError;
  RowOrder order = RowOrder::kShuffled;
  std::uint64_t seed = 0;
  /// How often all rows are visited; 0: without end.
  std::uint64_t epochs = 0;
  /// The length of the longest allowed line, element of an array, or JSON of a Parquet file's row,
  /// in bytes; > 0.
  std::uint64_t max_line_bytes = 16ULL << 20U;
  /// The maximum number of rows. The index takes 24 bytes for each, the shuffle another 4.
  std::uint64_t max_rows = 50'000'000;
  /// The folder of the temporary file that holds the rows of Parquet files. Empty: that of TMPDIR,
  /// or else /var/tmp.
  std::string temporary_folder;
};

}  // namespace tidemill::storage
