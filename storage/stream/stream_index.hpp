// SPDX-License-Identifier: Apache-2.0
// The control plane of a stream: which rows exist, who may have them next, who has them now.
//
// Rows and order. A row is admitted by its first `put`; ids grow in that order, and the order never
// changes. A row names its group, index and group size. It becomes ready for a task when all the
// task's input columns are there; tasks do not influence each other.
//
// Leases. `lease` hands ready units (rows, or complete groups) to a consumer. The consumer answers
// with one `complete`, which writes its output columns and acks. A lease that expires, is nacked,
// or whose consumer is dropped makes the row ready again at its old place, one delivery more on its
// count; at `max_deliveries` the row fails instead. Each lease has a generation greater than all
// before it; a completion under an expired or older lease is refused and writes nothing.
//
// Leaving. A row leaves when every task has acked it (trained), or by a verdict, for all tasks at
// once. A group is complete when its size less the rows that left by a verdict are ready.
//
// History. All that happened since the last commit is provisional: `restore` of the snapshot taken
// with that commit undoes it. `commit` makes it final.
//
// Cost. O(log n) per row touched: no operation scans the table. Scans are marked so.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "storage/records/lease.hpp"
#include "storage/records/refusal.hpp"
#include "storage/records/sample.hpp"
#include "storage/records/verdict.hpp"
#include "storage/stream/index_snapshot.hpp"
#include "storage/stream/index_state.hpp"
#include "storage/stream/lease_table.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::storage {

/// What the index is told of one cell that is written.
struct CellInfo {
  ColumnId column;
  std::uint64_t bytes = 0;
  DType dtype = DType::kU8;  // of its elements
};

/// Asks for ready units.
struct LeaseRequest {
  TaskId task;
  std::string consumer = {};
  std::uint32_t count = 1;      // units, at least 1
  std::uint32_t min_count = 1;  // nothing is leased when fewer are there
};

/// A row of a grant.
struct GrantedRow {
  LeaseToken lease;
  std::uint32_t deliveries = 0;  // earlier deliveries to this task that came back
};

/// What one rank of a grant receives, in admission order.
struct GrantedShare {
  std::vector<GrantedRow> rows;
  std::uint64_t tokens = 0;
};

/// An answered `LeaseRequest`: one share, or one for each of the task's ranks.
struct Grant {
  std::vector<GrantedShare> shares;
  TimePoint deadline;
  [[nodiscard]] bool empty() const noexcept {
    return shares.empty() || shares.front().rows.empty();
  }
};

/// A row as a task hands it back.
struct Completion {
  LeaseToken lease;
  std::vector<CellInfo> columns = {};  // all outputs of the task
  RowFacts facts = {};
};

/// The places that live groups hold in the admission ledger.
struct HeldPlaces {
  std::int64_t running = 0;   // response not finished: `force_submit` of a restart
  std::int64_t accepted = 0;  // finished, untrained: `unconsumed` of a restart
  friend bool operator==(const HeldPlaces&, const HeldPlaces&) = default;
};

/// What operations did beside their answers, in the order in which it happened.
struct StreamEffects {
  std::vector<RetiredRow> retired;
  std::vector<TaskRow> returned;  // leases that expired or lost their consumer
  PlaceChanges places;
};

/// How much the index has touched: cost follows the work, and a test holds it to that.
struct WorkCounters {
  std::uint64_t rows = 0;
  std::uint64_t units = 0;
};

/// One lease, as `leases` shows it.
struct LeaseView {
  LeaseToken token;
  std::string consumer;
  TimePoint deadline;
};

/// The control plane of one stream.
///
/// Calls that take `now` first return every lease whose deadline is not after it, also when they
/// are refused then. A refused call changes nothing else; its message begins with the reason's
/// name, and it is counted under it. Errors: `kInvalidArgument` unless stated otherwise, with the
/// reasons named. Threads: one call at a time; owns no lock, thread or clock.
class StreamIndex {
public:
  /// Makes an empty index.
  /// Errors: those of `check_options`.
  [[nodiscard]] static Result<std::unique_ptr<StreamIndex>> create(StreamOptions options);

  StreamIndex(const StreamIndex&) = delete;
  StreamIndex& operator=(const StreamIndex&) = delete;
  ~StreamIndex() = default;

  // -- writing ---------------------------------------------------------------

  /// Admits a row with its first columns, or adds columns to a live one. For a live row only the id
  /// counts, and the group if one is named (`group_size` above 0).
  /// Errors: `unknown_column`, `bad_column` (another type), `duplicate_column`; for a new row
  /// `no_groups`, `bad_group`, `group_full`, `group_retired`, `byte_limit` (`kResourceExhausted`: a
  /// new group waits); else `row_retired` (`kNotFound`), `group_mismatch`.
  [[nodiscard]] Status put(const SampleRow& row, std::span<const CellInfo> columns,
                           const RowFacts& facts);

  // -- delivery --------------------------------------------------------------

  /// Leases up to `count` units in the task's order; nothing when fewer than `min_count` (exactly
  /// `count` for a task with ranks) are deliverable. Stale units are dealt with first, as the
  /// task's policy says, also when nothing is leased. Errors: `time_regress`, `unknown_task`,
  /// `bad_count`.
  [[nodiscard]] Result<Grant> lease(const LeaseRequest& request, TimePoint now);

  /// Writes the output columns of leased rows and acks them, each row wholly or not at all. For a
  /// task that takes groups, all live rows of a group must be there, and are done or refused
  /// together. Per row: `unknown_row`, `not_leased`, `old_lease`, `bad_column`, `duplicate_column`,
  /// `group_refused`.
  /// Errors: `time_regress`, `unknown_task`, `duplicate_row`, `partial_group`.
  [[nodiscard]] Result<Settlement> complete(TaskId task, std::span<const Completion> rows,
                                            TimePoint now);

  /// Gives leased rows back: ready again at their old place, or failed after `max_deliveries`.
  /// Rows and errors as in `complete`.
  [[nodiscard]] Result<Settlement> nack(TaskId task, std::span<const LeaseToken> rows,
                                        std::string_view reason, TimePoint now);

  /// Moves the deadline of leased rows to `now` plus the task's lease. Rows and errors as in
  /// `complete`.
  [[nodiscard]] Result<Settlement> renew(TaskId task, std::span<const LeaseToken> rows,
                                         TimePoint now);

  /// Returns all leases of a consumer that is gone.
  void drop_consumer(std::string_view consumer);

  /// Moves the clock and returns every lease that is due.
  /// Errors: `time_regress`.
  [[nodiscard]] Status expire(TimePoint now);

  /// Returns when the next lease is due, if any is out.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return leases_.next_deadline(); }

  // -- verdicts --------------------------------------------------------------

  /// Takes a row out for all tasks; a leased one too. With `kFail`, the rest of its group follows
  /// `on_failed`.
  /// Errors: `unknown_row` (`kNotFound`).
  [[nodiscard]] Status judge(SampleId row, const Verdict& verdict);

  /// Takes all rows of a group out; rows of it that come later are refused.
  /// Errors: `unknown_row` (`kNotFound`: no such group is live).
  [[nodiscard]] Status judge_group(GroupId group, const Verdict& verdict);

  // -- versions --------------------------------------------------------------

  /// Raises the version by which staleness is judged at the next `lease`.
  /// Errors: `version_regress` (`kStaleVersion`).
  [[nodiscard]] Status set_version(std::uint64_t step);
  /// Sets the version freely: recovery.
  void restore_version(std::uint64_t step);
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  // -- history ---------------------------------------------------------------

  /// Makes all that happened so far final and returns how many rows left for good since the last
  /// commit.
  std::uint64_t commit();
  /// Returns the state that a commit of this moment keeps. Cost: scan of the live rows.
  [[nodiscard]] IndexSnapshot snapshot() const;
  /// Replaces the whole state by a snapshot's; no lease of before is honoured. On failure the index
  /// is unchanged.
  /// Errors: `foreign_snapshot` (other columns or tasks), `kCorruptData` (contradicts itself).
  [[nodiscard]] Status restore(const IndexSnapshot& snapshot);

  /// Returns and forgets what happened since the last call. An owner calls it after every
  /// operation.
  [[nodiscard]] StreamEffects take_effects();

  // -- observing -------------------------------------------------------------

  [[nodiscard]] const StreamOptions& options() const noexcept { return options_; }
  [[nodiscard]] const StreamTotals& totals() const noexcept { return totals_; }
  /// Returns the totals as of the last commit.
  [[nodiscard]] const StreamTotals& committed() const noexcept { return committed_; }
  [[nodiscard]] const TaskTotals& task_totals(TaskId task) const;
  [[nodiscard]] std::uint64_t refused(Refusal reason) const noexcept;
  [[nodiscard]] const WorkCounters& work() const noexcept { return work_; }
  [[nodiscard]] HeldPlaces held_places() const noexcept { return held_; }
  [[nodiscard]] std::uint64_t num_live() const noexcept { return rows_.size(); }
  [[nodiscard]] std::uint64_t num_leased() const noexcept { return leases_.size(); }
  [[nodiscard]] std::uint64_t num_leased(TaskId task) const { return leases_.size(task); }
  [[nodiscard]] std::uint64_t num_ready(TaskId task) const;
  /// Returns how many units are fresh and ready, in whatever order the task takes them.
  [[nodiscard]] std::uint64_t num_deliverable(TaskId task) const;
  [[nodiscard]] std::uint64_t bytes_used() const noexcept { return bytes_used_; }
  /// Returns `bytes_used` plus the room kept for live groups to grow to `group_bytes`.
  [[nodiscard]] std::uint64_t bytes_reserved() const noexcept { return bytes_reserved_; }
  /// Returns a live row, or null. Borrowed until the next change.
  [[nodiscard]] const SampleRow* find(SampleId row) const;
  /// Returns what is known of a live row's versions and tokens. Requires that it is live.
  [[nodiscard]] const RowFacts& facts(SampleId row) const;
  /// Returns what the task waits for, in words: why its oldest unit that is not deliverable is not.
  /// "new rows" when there is none at all; empty when all there is can be leased. Cost: scan.
  [[nodiscard]] std::string waiting_for(TaskId task) const;
  /// Returns the rows ready for a task in admission order. Cost: scan.
  [[nodiscard]] std::vector<SampleId> ready_rows(TaskId task) const;
  /// Returns the units that `lease` could deliver now, each as its rows. Cost: scan.
  [[nodiscard]] std::vector<std::vector<SampleId>> deliverable(TaskId task) const;
  /// Returns the leases of a task in admission order. Cost: scan.
  [[nodiscard]] std::vector<LeaseView> leases(TaskId task) const;
  /// Recomputes everything derived from the rows, and the conservation law
  /// `admitted = trained + dropped + filtered + failed + live`. Cost: scan; for tests.
  /// Errors: `kInternal` naming the first contradiction.
  [[nodiscard]] Status check_invariants() const;

private:
  using Cell = internal::Cell;
  using Group = internal::Group;
  using Row = internal::Row;
  using Task = internal::Task;

  explicit StreamIndex(StreamOptions options);
  StreamIndex& operator=(StreamIndex&&) = default;  // for `restore` alone

  // Lookup.
  [[nodiscard]] Row* find_row(SampleId id);
  [[nodiscard]] const Row* find_row(SampleId id) const;
  [[nodiscard]] bool known(TaskId task) const noexcept { return task.value < tasks_.size(); }
  [[nodiscard]] Status refuse(Refusal reason, Errc code, const std::string& detail);
  [[nodiscard]] Status refuse(Refusal reason, const std::string& detail) {
    return refuse(reason, Errc::kInvalidArgument, detail);
  }

  // Writing.
  [[nodiscard]] std::optional<Refusal> judge_cells(std::span<const CellInfo> cells) const;
  [[nodiscard]] std::string describe_cells(std::span<const CellInfo> cells) const;
  [[nodiscard]] Status check_live_row(const Row& row, const SampleRow& named,
                                      std::span<const CellInfo> columns);
  [[nodiscard]] Status check_new_row(const SampleRow& row);
  [[nodiscard]] Status check_group_place(const Group& group, const SampleRow& row);
  [[nodiscard]] Status check_room(const SampleRow& row);
  Row& admit(const SampleRow& info);
  Group& group_for(const SampleRow& row);
  void write(Row& row, std::span<const CellInfo> columns, const RowFacts& facts);
  void add_bytes(Group& group, std::uint64_t bytes);
  void remove_bytes(Group& group, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t reservation(const Group& group) const noexcept;

  // Cells: the only places where a state, a counter or a set of units changes.
  void set_state(Row& row, std::uint32_t task, CellState state);
  void sync(const Row& row, std::uint32_t task);
  void sync_group(const Group& group, std::uint32_t task);

  // Delivery.
  [[nodiscard]] std::vector<SampleId> rows_of(const Task& task, Unit unit) const;
  void drop_stale(Task& task, std::uint32_t index);
  [[nodiscard]] std::vector<Unit> select(const Task& task, const LeaseRequest& request) const;
  [[nodiscard]] std::vector<std::vector<Unit>> deal(const Task& task,
                                                    const std::vector<Unit>& units) const;
  void grant_unit(Unit unit, const LeaseRequest& request, TimePoint deadline, GrantedShare& share);
  void return_leases(const std::vector<TaskRow>& leased, const std::string& why);
  void return_row(TaskRow leased, const std::string& why);

  // Settlement.
  [[nodiscard]] Status begin_settlement(TaskId task, const std::vector<LeaseToken>& rows,
                                        TimePoint now);
  [[nodiscard]] std::vector<std::optional<Refusal>> judge_leases(
      TaskId task, const std::vector<LeaseToken>& rows) const;
  [[nodiscard]] std::optional<Refusal> check_outputs(const Task& task,
                                                     const Completion& completion) const;
  void refuse_torn_groups(TaskId task, const std::vector<LeaseToken>& rows,
                          std::vector<std::optional<Refusal>>& reasons) const;
  [[nodiscard]] Settlement report(const std::vector<LeaseToken>& rows,
                                  const std::vector<std::optional<Refusal>>& reasons);
  void settle(Row& row, std::uint32_t task, CellState state);

  // Leaving.
  void accept(Row& row);
  void fail(Row& row, const std::string& reason);
  void retire(SampleId id, RowOutcome outcome, const std::string& reason);
  void close(Group& group, const Verdict& verdict);
  void leave(Group& group, RowOutcome outcome);

  // History and inspection.
  [[nodiscard]] RowSnapshot store_row(const Row& row) const;
  [[nodiscard]] Status load(const IndexSnapshot& snapshot);
  [[nodiscard]] Status load_group(const GroupSnapshot& stored);
  [[nodiscard]] Status load_row(const RowSnapshot& stored);
  [[nodiscard]] std::string describe_group(Unit unit, std::uint32_t task) const;
  [[nodiscard]] std::string describe_row(const Row& row, std::uint32_t task) const;
  [[nodiscard]] Status check_group(const Group& group) const;
  [[nodiscard]] Status check_row(const Row& row) const;
  [[nodiscard]] Status check_task(std::uint32_t task) const;
  [[nodiscard]] Status check_sums() const;

  StreamOptions options_;
  std::vector<Task> tasks_;
  std::uint64_t accept_bit_ = 0;  // 0: places are not counted
  std::unordered_map<SampleId, Row> rows_;
  std::unordered_map<GroupId, Group> groups_;
  std::unordered_map<SampleId, Group> solos_;  // stand-ins for the groups of rows without one
  LeaseTable leases_;
  TimePoint now_ = TimePoint::min();
  std::uint64_t version_ = 0;
  std::uint64_t next_row_ = 0;
  std::uint64_t next_group_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t bytes_used_ = 0;
  std::uint64_t bytes_reserved_ = 0;
  HeldPlaces held_;
  StreamTotals totals_;
  StreamTotals committed_;
  StreamEffects effects_;
  std::array<std::uint64_t, kNumRefusals> refused_{};
  mutable WorkCounters work_;
};

}  // namespace tidemill::storage
