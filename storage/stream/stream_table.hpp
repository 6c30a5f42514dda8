// SPDX-License-Identifier: Apache-2.0
// A stream: rows that tasks lease with their input columns and hand back with their output columns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "storage/records/lease.hpp"
#include "storage/records/sample.hpp"
#include "storage/records/verdict.hpp"
#include "storage/stream/cell_checker.hpp"
#include "storage/stream/column_store.hpp"
#include "storage/stream/stream_index.hpp"
#include "storage/stream/stream_options.hpp"
#include "storage/stream/stream_snapshot.hpp"

namespace tidemill::storage {

/// The part of a lease for one rank, in admission order.
struct LeasedShare {
  std::vector<LeasedRow> rows;
  std::uint64_t tokens = 0;
};

/// The result of a lease request, with its data.
struct LeasedBatch {
  std::vector<LeasedShare> shares;  // one, or one for each of the task's ranks
  TimePoint deadline;
  [[nodiscard]] bool empty() const noexcept {
    return shares.empty() || shares.front().rows.empty();
  }
};

/// A `StreamIndex` with the data that it describes. Every operation changes both or neither.
///
/// Semantics, reasons and errors are those of the index. The comments below describe only what this
/// class adds.
/// Threads: one call at a time.
class StreamTable {
public:
  /// Errors: those of `check_options`.
  [[nodiscard]] static Result<std::unique_ptr<StreamTable>> create(StreamOptions options);

  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  /// Admits a row, or adds columns to a live one.
  [[nodiscard]] Status put(const SampleRow& row, std::span<const ColumnValue> columns,
                           const RowFacts& facts);

  /// Leases rows with the cells of the task's input columns, and those of its optional inputs and
  /// its progress that the row has.
  [[nodiscard]] Result<LeasedBatch> lease(const LeaseOptions& request, TimePoint now);

  /// Writes outputs and acks, each row (for a task that takes groups, each group) completely or not
  /// at all. Cells that break a rule of their column are refused.
  [[nodiscard]] Result<Settlement> complete(const LeaseHolder& holder,
                                            std::span<const HeldRow> rows, TimePoint now);
  [[nodiscard]] Result<Settlement> nack(const LeaseHolder& holder, std::span<const HeldRow> rows,
                                        const ReleaseOptions& options, TimePoint now);
  [[nodiscard]] Result<Settlement> renew(const LeaseHolder& holder, std::span<const HeldRow> rows,
                                         TimePoint now);
  void drop_consumer(std::string_view consumer);
  [[nodiscard]] Status expire(TimePoint now);

  [[nodiscard]] Status apply_verdict(SampleId row, const Verdict& verdict);
  [[nodiscard]] Status apply_group_verdict(GroupId group, const Verdict& verdict);
  [[nodiscard]] Status set_version(std::uint64_t step) { return index_->set_version(step); }
  void restore_version(std::uint64_t step) { index_->restore_version(step); }

  /// Copies handles, not bytes. Cost: scan of the live rows.
  [[nodiscard]] StreamSnapshot snapshot() const;
  /// Errors: also `kCorruptData` if the cells do not match the index.
  [[nodiscard]] Status restore(const StreamSnapshot& snapshot);

  /// Returns and clears the effects since the last call.
  [[nodiscard]] StreamEffects take_effects();

  [[nodiscard]] const StreamIndex& index() const noexcept { return *index_; }
  [[nodiscard]] const ColumnStore& columns() const noexcept { return columns_; }
  [[nodiscard]] const StreamOptions& options() const noexcept { return index_->options(); }

  /// Checks the index, and that exactly the cells of its rows are stored. Cost: scan; for tests.
  /// Errors: `kInternal` naming the first contradiction.
  [[nodiscard]] Status check_invariants() const;

private:
  explicit StreamTable(std::unique_ptr<StreamIndex> index);
  void collect();
  [[nodiscard]] std::vector<CellInfo> describe(SampleId row,
                                               std::span<const ColumnValue> cells) const;
  [[nodiscard]] std::vector<HeldRowInfo> describe(TaskId task, std::span<const HeldRow> rows) const;
  // Stores the progress of the rows that a nack or a renewal has settled.
  void store_progress(TaskId task, std::span<const HeldRow> rows, const Settlement& settlement);
  [[nodiscard]] Status check_cells(const RowSnapshot& row, const RowColumns& cells) const;

  std::unique_ptr<StreamIndex> index_;
  ColumnStore columns_;
  CellChecker checker_;
  std::vector<std::vector<ColumnId>> inputs_;    // by task
  std::vector<std::vector<ColumnId>> optional_;  // by task: optional inputs, then progress
  std::vector<std::vector<ColumnId>> progress_;  // by task
  StreamEffects effects_;
};

}  // namespace tidemill::storage
