// SPDX-License-Identifier: Apache-2.0
// Rows of files in an order that depends only on a position.
//
// A run counts the rows that it has drawn; the count is its *position*. The row at a position is a
// pure function of (files, seed, position). A run that stored its position therefore continues with
// exactly the next row, even if that row is the first of an epoch. Rows are checked once, when the
// set is opened. From then on, memory holds only their locations, and each row is read again when
// it is drawn. (The rows of Parquet files are read from a temporary file with their JSON.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "storage/dataset/dataset_options.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::storage {

class EpochOrder;
class MixtureOrder;
class RowIndex;

/// An opened data set of `Row`: `PromptRow` or `SupervisedRow`.
///
/// Threads: one call at a time.
template <class Row>
class Dataset {
public:
  /// Reads and checks every row.
  /// Errors: `kInvalidArgument` naming file and line ("data/train.jsonl:17: answer: ...") for a row
  /// that cannot be used, and for an array that is broken between its rows; `kInvalidArgument`
  /// naming the path for a path that is not a regular file, for a Parquet file that is damaged, has
  /// a column without JSON or is not supported by this build, for no rows at all, or for a file
  /// with two weights; `kNotFound` for a path or glob that matches no file; `kNotFound` or
  /// `kUnavailable` for a file that cannot be read; `kResourceExhausted` for more rows than
  /// allowed.
  [[nodiscard]] static Result<std::unique_ptr<Dataset>> open(const DatasetOptions& options);

  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  ~Dataset();

  /// Returns the number of rows, which is also the number of positions in an epoch; > 0. With
  /// weights, an epoch visits some rows several times and others not at all.
  [[nodiscard]] std::uint64_t num_rows() const noexcept;
  /// Returns the number of positions, or nothing if the data repeats without end.
  [[nodiscard]] std::optional<std::uint64_t> num_positions() const noexcept;
  /// Returns a number of consecutive positions that visit every row at least once, or the largest
  /// 64-bit number if a source is drawn too rarely to tell.
  [[nodiscard]] std::uint64_t positions_of_all_rows() const noexcept;
  /// Returns the files in the order in which they are read.
  [[nodiscard]] std::vector<std::string> files() const;
  /// Returns how many rows `OnRowError::kSkip` has skipped.
  [[nodiscard]] std::uint64_t num_skipped() const noexcept;
  /// Returns why the first ten of them were skipped, one line each.
  [[nodiscard]] std::vector<std::string> first_skipped() const;

  /// Returns a digest, from which a resumed run knows whether it continues with the same data. The
  /// digest covers each file's name (without its folder), size and content, in order, the numbers
  /// of rows used and skipped, and the weights if there are any.
  [[nodiscard]] const std::string& digest() const noexcept;

  /// Returns the row at `position`.
  /// Errors: `kNotFound` after the last position, at the end of the data; `kCorruptData` naming
  /// file and line if the file has changed since `open`; as `open` if it can no longer be read.
  [[nodiscard]] Result<Row> row_at(std::uint64_t position);
  /// Returns row `number` in the order of the files. Requires `number` < `num_rows()`.
  /// Errors: as `row_at`, except for the end of the data.
  [[nodiscard]] Result<Row> row_in_file_order(std::uint64_t number);

private:
  // Rows with an order of their own: those of all files, or those of one weight.
  struct Source {
    std::unique_ptr<RowIndex> index;
    std::unique_ptr<EpochOrder> order;
  };

  explicit Dataset(const DatasetOptions& options);

  [[nodiscard]] static Result<Row> read_row(RowIndex& index, std::uint64_t number);

  DatasetOptions options_;
  std::vector<Source> sources_;
  std::unique_ptr<MixtureOrder> mixture_;  // null without weights
  std::uint64_t num_rows_ = 0;
  std::string digest_;
};

extern template class Dataset<PromptRow>;
extern template class Dataset<SupervisedRow>;

/// Rows to generate responses for.
using PromptDataset = Dataset<PromptRow>;
/// Rows to train on.
using SupervisedDataset = Dataset<SupervisedRow>;

}  // namespace tidemill::storage
