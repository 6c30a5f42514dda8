// SPDX-License-Identifier: Apache-2.0
// Rows of JSONL files in an order that a position alone decides.
//
// A run counts the rows it has drawn; the count is its *position*. Which row a position names is a
// pure function of (files, seed, position), so a run that stored its position continues with
// exactly the row that comes next, also when that is the first of an epoch. Rows are checked once,
// when the set is opened; memory then holds where they are, and each is read again when it is
// drawn.
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
  /// Errors: `kInvalidArgument` naming file and line ("data/train.jsonl:17: answer: ...") for a
  /// row that cannot be used; naming the path for a glob without a match, a path that is no
  /// regular file, no row at all, or a file that stands under two weights; `kNotFound`,
  /// `kUnavailable` for a file that cannot be read;
  /// `kResourceExhausted` for more rows than allowed.
  [[nodiscard]] static Result<std::unique_ptr<Dataset>> open(const DatasetOptions& options);

  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  ~Dataset();

  /// Returns the number of rows, which is that of an epoch's positions; > 0. With weights an epoch
  /// visits some rows several times and others not at all.
  [[nodiscard]] std::uint64_t num_rows() const noexcept;
  /// Returns how many positions there are, or nothing when the data repeats without end.
  [[nodiscard]] std::optional<std::uint64_t> num_positions() const noexcept;
  /// Returns a number of positions in a row among which every row stands at least once; the largest
  /// number if a source is drawn too rarely to say.
  [[nodiscard]] std::uint64_t positions_of_all_rows() const noexcept;
  /// Returns the files, ordered as they are read.
  [[nodiscard]] std::vector<std::string> files() const;
  /// Returns how many rows `OnRowError::kSkip` left out.
  [[nodiscard]] std::uint64_t num_skipped() const noexcept;
  /// Returns why the first ten of them were left out, one line each.
  [[nodiscard]] std::vector<std::string> first_skipped() const;

  /// Returns the digest that tells whether a run goes on with the data it began with: of each
  /// file's name (without its folder), size and content, in order, and of the numbers of rows used
  /// and skipped; with weights, of those too.
  [[nodiscard]] const std::string& digest() const noexcept;

  /// Returns the row at `position`.
  /// Errors: `kNotFound` behind the last position: the end of the data; `kCorruptData` naming file
  /// and line when the file has changed since `open`; as `open` when it cannot be read any more.
  [[nodiscard]] Result<Row> row_at(std::uint64_t position);
  /// Returns row `number` in the order of the files. Requires `number` < `num_rows()`.
  /// Errors: as above, but for the end of the data.
  [[nodiscard]] Result<Row> filed_row(std::uint64_t number);

private:
  // What is drawn from by itself: all files, or those of one weight.
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

/// Rows to generate answers for.
using PromptDataset = Dataset<PromptRow>;
/// Rows to learn from.
using SupervisedDataset = Dataset<SupervisedRow>;

}  // namespace tidemill::storage
