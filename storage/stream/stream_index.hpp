// SPDX-License-Identifier: Apache-2.0
// The control plane of a stream: which rows exist, which tasks may lease them next, and which
// consumers hold them now.
//
// A stream is the table between the stages of a run. Each stage is a task: it leases rows that have
// its input columns, processes them, and writes its output columns. The index tracks rows, leases
// and counters, but holds no data. The cells are in a `ColumnStore`, and a `StreamTable` keeps the
// two in step.
//
// Rows and order. The first `put` of a row admits it. Row ids increase in admission order, and this
// order never changes. A row names its group, its index in the group, and the size of the group. It
// becomes ready for a task when all the task's input columns are present. Tasks do not affect each
// other: a row can be leased for one task while it is ready for another.
//
// Leases. `lease` grants ready lease units (units for short: rows, or complete groups) to a
// consumer until a deadline, which `renew` extends. The consumer finishes with one `complete`,
// which writes its output columns and acks the rows in one step. If the lease expires, if the
// consumer nacks the row, or if the consumer is dropped, the row becomes ready again at its old
// position in the order. Only a nack can say that processing the row failed: after `max_deliveries`
// such failures the row fails. A delivery that its consumer left, or that was lost with its
// consumer or with a message, does not count. A lease names the row, the incarnation of the stream,
// and a generation greater than those of all earlier leases. A completion under an expired or older
// lease, under a lease of another incarnation, or by another consumer is refused and writes
// nothing, so a consumer that lost its lease cannot overwrite the work of the next one.
//
// Cells. A cell must follow the rules of its column. Under a valid lease, a completion with a cell
// that does not, or with columns that the task may not write, is a failed delivery: the row is
// refused and given back, so a consumer that always writes the same invalid cells ends in a failed
// row. If the task takes groups, the other rows of the group are given back too, but their
// deliveries did not fail. The index holds no data and checks only sizes and types; the owner of
// the data says what else is wrong with a cell (`CellInfo::fault`).
//
// Progress. A renewal, or a nack that leaves the row, may write the task's progress columns, which
// replace those that the row had. No row becomes ready because of them. The ack erases them.
//
// Leaving. A row leaves the index when every task is done with it, or when a verdict removes it for
// all tasks at once. In the first case it counts as trained, or as dropped if a task removed it as
// stale. A group is complete for a task when its ready rows and the rows that left by a verdict add
// up to its size.
//
// History. A commit of the run stores a snapshot. `restore` of that snapshot undoes everything that
// happened since.
//
// Cost. Operations take O(log n) per row touched and never scan the table, except where a comment
// says "Cost: scan". Rows, groups, leases and ready units are in slots that are reused, so in
// steady state the index allocates nothing per row.
//
// Memory. It is proportional to the largest number of rows that were ever live together, however
// many have left, and is given back with the index. A row without a group takes 128 bytes for one
// task and 192 for three, 5 for its place among the ids, and for each task about 45 more while it
// is ready and 72 while it is leased. This holds for ids without gaps: a row whose neighbors have
// left keeps up to 2.5 KiB of each map of ids that it is in (see `id_map.hpp`).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

/// What the index needs to know about a cell that is written.
struct CellInfo {
  ColumnId column;
  std::uint64_t bytes = 0;
  DType dtype = DType::kU8;  // of its elements
  std::string fault = {};    // what is wrong with its values; empty: nothing
};

/// The columns that a call writes to a row.
struct RowWrite {
  SampleRow row;
  std::span<const CellInfo> columns;  // borrowed until the call returns
  RowFacts facts = {};
};

/// A request for ready units.
struct LeaseOptions {
  TaskId task;
  std::string consumer = {};
  std::uint32_t count = 1;      // units, at least 1
  std::uint32_t min_count = 1;  // nothing is leased if fewer are deliverable
  std::uint64_t instance = 0;   // of the consumer, see `LeaseHolder`
};

/// A row of a grant.
struct GrantedRow {
  Lease lease;
  std::uint32_t deliveries = 0;  // earlier deliveries to this task that were returned
};

/// The part of a grant for one rank, in admission order.
struct GrantedShare {
  std::vector<GrantedRow> rows;
  std::uint64_t tokens = 0;
};

/// The result of a lease request: one share, or one for each of the task's ranks.
struct Grant {
  std::vector<GrantedShare> shares;
  TimePoint deadline;
  [[nodiscard]] bool empty() const noexcept {
    return shares.empty() || shares.front().rows.empty();
  }
};

/// A leased row, as its consumer acks it, gives it back or renews its lease: see `HeldRow`.
struct HeldRowInfo {
  Lease lease;
  std::vector<CellInfo> columns = {};
  RowFacts facts = {};
  /// The bytes of the task's progress columns that the row has now.
  std::uint64_t progress_bytes = 0;
};

/// How a consumer gives rows back, and why.
struct ReleaseOptions {
  Release release = Release::kLost;
  std::string reason = {};
};

/// The slots that live groups hold in the admission ledger.
struct HeldSlots {
  std::int64_t running = 0;   // response not finished; after a restart, goes to `force_submit`
  std::int64_t accepted = 0;  // finished, not trained; after a restart, the ledger's `unconsumed`
  friend bool operator==(const HeldSlots&, const HeldSlots&) = default;
};

/// The effects of operations in addition to their results, in the order in which they happened.
struct StreamEffects {
  std::vector<RetiredRow> retired;
  std::vector<TaskRow> returned;  // leases that expired or lost their consumer
  SlotChanges slots;
};

/// Counts the rows and units that operations have touched. A test compares them with the work done.
struct WorkCounters {
  std::uint64_t rows = 0;
  std::uint64_t units = 0;
};

/// One lease, as `leases` returns it.
struct LeaseView {
  Lease lease;
  std::string consumer;
  TimePoint deadline;
};

/// The control plane of one stream.
///
/// A call that takes `now` first ends every lease whose deadline is `now` or earlier, even if the
/// call itself is then refused. A refused call changes nothing else. Its message begins with the
/// name of the reason, and it is counted under that reason.
/// Errors: `kInvalidArgument` unless stated otherwise, with the reasons that the comments name.
/// Threads: one call at a time. Owns no lock, thread or clock.
class StreamIndex {
public:
  /// Makes an empty index.
  /// Errors: those of `check_options`.
  [[nodiscard]] static Result<std::unique_ptr<StreamIndex>> create(StreamOptions options);

  StreamIndex(const StreamIndex&) = delete;
  StreamIndex& operator=(const StreamIndex&) = delete;
  ~StreamIndex() = default;

  // -- writing ---------------------------------------------------------------

  /// Admits a row with its first columns, or adds columns to a live row. If the row is
  /// live, only its id is read and, if `group_size` is above 0, its group.
  /// Errors: `unknown_column`, `bad_column`, `duplicate_column`. For a new row, also
  /// `no_groups`, `bad_group`, `group_full`, `group_retired` and `row_retired` (both `kNotFound`),
  /// `byte_limit` (`kResourceExhausted`: the new group has to wait). For a live row, also
  /// `group_mismatch`.
  [[nodiscard]] Status put(const SampleRow& row, std::span<const CellInfo> columns,
                           const RowFacts& facts);

  /// Does the same for several rows, one after the other, until one is refused. Faster than single
  /// calls in a large stream, because the index loads the rows from memory together.
  /// Errors: those of the row that is refused. The rows before it are written.
  [[nodiscard]] Status put(std::span<const RowWrite> rows);

  // -- delivery --------------------------------------------------------------

  /// Leases up to `count` units in the task's order. Leases nothing if fewer than `min_count` units
  /// are deliverable, or fewer than `count` for a task with ranks. Applies the task's stale policy
  /// first, even if nothing is leased afterwards.
  /// Errors: `time_regress`, `unknown_task`, `bad_count`.
  [[nodiscard]] Result<Grant> lease(const LeaseOptions& request, TimePoint now);
  /// Does the same, and replaces `grant` by the result, reusing its memory.
  [[nodiscard]] Status lease(const LeaseOptions& request, TimePoint now, Grant& grant);

  /// Writes the output columns of leased rows and acks the rows, each of them completely or not at
  /// all. For a task that takes groups, `rows` must contain all live rows of a group, which are
  /// done or refused together. Reasons per row: `unknown_row`, `not_leased`, `old_lease`,
  /// `other_incarnation`, `other_consumer`, `group_refused`; and `unknown_column`, `bad_column` and
  /// `duplicate_column`, which are failed deliveries.
  /// Errors: `time_regress`, `unknown_task`, `duplicate_row`, `partial_group`.
  [[nodiscard]] Result<Settlement> complete(const LeaseHolder& holder,
                                            std::span<const HeldRowInfo> rows, TimePoint now);

  /// Does the same, and replaces `settlement` by the result, reusing its memory.
  [[nodiscard]] Status complete(const LeaseHolder& holder, std::span<const HeldRowInfo> rows,
                                TimePoint now, Settlement& settlement);

  /// Gives leased rows back. They become ready again at their old position in the order. A row
  /// whose release is `kFailed` for the `max_deliveries`-th time fails instead, with the reason.
  /// Only rows that are left (`kLeft`) may have progress. Rows, reasons and errors: as in
  /// `complete`.
  [[nodiscard]] Result<Settlement> nack(const LeaseHolder& holder,
                                        std::span<const HeldRowInfo> rows,
                                        const ReleaseOptions& options, TimePoint now);

  /// Sets the deadline of leased rows to `now` plus the task's lease, and stores their progress.
  /// Rows, reasons and errors: as in `complete`.
  [[nodiscard]] Result<Settlement> renew(const LeaseHolder& holder,
                                         std::span<const HeldRowInfo> rows, TimePoint now);

  /// Ends all leases of a consumer that is gone. Their rows become ready again, as after an expired
  /// lease.
  void drop_consumer(std::string_view consumer);

  /// Advances the clock and ends every lease that is due.
  /// Errors: `time_regress`.
  [[nodiscard]] Status expire(TimePoint now);

  /// Returns when the next lease is due, or nothing if no row is leased.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return leases_.next_deadline(); }

  // -- verdicts --------------------------------------------------------------

  /// Removes a row for all tasks, even if it is leased. After `kFail`, `on_failed` decides what
  /// happens to the rest of its group.
  /// Errors: `unknown_row` (`kNotFound`).
  [[nodiscard]] Status apply_verdict(SampleId id, const Verdict& verdict);

  /// Removes all rows of a group. Rows of it that come later are refused.
  /// Errors: `unknown_row` (`kNotFound`) if no such group is live.
  [[nodiscard]] Status apply_group_verdict(GroupId id, const Verdict& verdict);

  // -- versions --------------------------------------------------------------

  /// Raises the version that decides which units are stale. Stale policies apply at the next
  /// `lease`.
  /// Errors: `version_regress` (`kStaleVersion`).
  [[nodiscard]] Status set_version(std::uint64_t step);
  /// Sets the version to any value. For recovery.
  void restore_version(std::uint64_t step);
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  // -- history ---------------------------------------------------------------

  /// Returns the state that a commit at this moment stores. Cost: scan of the live rows.
  [[nodiscard]] IndexSnapshot snapshot() const;
  /// Replaces the whole state with that of a snapshot. All earlier leases become invalid. On
  /// failure the index is unchanged.
  /// The snapshot may lack the last of the declared columns: its rows then lack them too.
  /// Errors: `foreign_snapshot` (other columns or tasks); `kCorruptData` (it contradicts itself).
  [[nodiscard]] Status restore(const IndexSnapshot& snapshot);

  /// Returns and clears the effects since the last call. The owner calls it after every operation.
  [[nodiscard]] StreamEffects take_effects();
  /// Does the same, and replaces `effects` by them, keeping its memory for later effects.
  void take_effects(StreamEffects& effects);

  // -- observing -------------------------------------------------------------

  [[nodiscard]] const StreamOptions& options() const noexcept { return options_; }
  [[nodiscard]] const StreamTotals& totals() const noexcept { return totals_; }
  [[nodiscard]] const TaskTotals& task_totals(TaskId task) const;
  [[nodiscard]] const ReturnedDeliveries& returned(TaskId task) const;
  [[nodiscard]] std::uint64_t refused(Refusal reason) const noexcept;
  [[nodiscard]] const WorkCounters& work() const noexcept { return work_; }
  [[nodiscard]] HeldSlots held_slots() const noexcept { return held_; }
  [[nodiscard]] std::uint64_t num_live() const noexcept { return rows_.size(); }
  [[nodiscard]] std::uint64_t num_leased() const noexcept { return leases_.size(); }
  [[nodiscard]] std::uint64_t num_leased(TaskId task) const { return leases_.size(task); }
  [[nodiscard]] std::uint64_t num_ready(TaskId task) const;
  /// Returns a number that increases whenever a `lease` call for the task that returned nothing may
  /// now succeed or drop stale units: when a unit becomes ready or leaves, and when the version
  /// changes. If it is unchanged and no lease is due, retrying cannot succeed.
  [[nodiscard]] std::uint64_t revision(TaskId task) const;
  [[nodiscard]] std::uint64_t bytes_used() const noexcept { return bytes_used_; }
  /// Returns `bytes_used` plus the bytes reserved for live groups to grow to `group_bytes`.
  [[nodiscard]] std::uint64_t bytes_reserved() const noexcept { return bytes_reserved_; }
  /// Returns a live row, or null. The result is borrowed until the next change.
  [[nodiscard]] const SampleRow* find(SampleId row) const;
  /// Returns the facts about the versions and tokens of a row. Requires that the row is live.
  [[nodiscard]] const RowFacts& facts(SampleId row) const;
  /// Returns what the task waits for, in words: why its oldest undeliverable unit cannot be
  /// delivered. Returns "new rows" if the task has no unit, and "" if all its units are
  /// deliverable.
  [[nodiscard]] std::string waiting_for(TaskId task) const;
  /// Returns the rows ready for a task in admission order. Cost: scan.
  [[nodiscard]] std::vector<SampleId> ready_rows(TaskId task) const;
  /// Returns the units that `lease` could deliver now, each as a list of its rows. Cost: scan.
  [[nodiscard]] std::vector<std::vector<SampleId>> deliverable(TaskId task) const;
  /// Returns the leases of a task in admission order. Cost: scan.
  [[nodiscard]] std::vector<LeaseView> leases(TaskId task) const;
  /// Recomputes everything that is derived from the rows, and checks the conservation law
  /// `admitted = trained + dropped + filtered + failed + live`. Cost: scan; for tests.
  /// Errors: `kInternal` naming the first contradiction.
  [[nodiscard]] Status check_invariants() const;

private:
  using Cell = internal::Cell;
  using Group = internal::Group;
  using GroupCell = internal::GroupCell;
  using Row = internal::Row;
  using Task = internal::Task;

  explicit StreamIndex(StreamOptions options);
  StreamIndex& operator=(StreamIndex&&) = default;  // only for `restore`

  // Lookup.
  [[nodiscard]] Row* find_row(SampleId id);
  [[nodiscard]] const Row* find_row(SampleId id) const;
  [[nodiscard]] Group& group_of(const Row& row) { return groups_[row.group]; }
  [[nodiscard]] const Group& group_of(const Row& row) const { return groups_[row.group]; }
  [[nodiscard]] Cell& cell(const Row& row, std::uint32_t task) { return rows_.cells(row)[task]; }
  [[nodiscard]] const Cell& cell(const Row& row, std::uint32_t task) const {
    return rows_.cells(row)[task];
  }
  // Returns the row that follows in its group, or null.
  [[nodiscard]] Row* next_of(const Row& row);
  [[nodiscard]] const Row* next_of(const Row& row) const;
  [[nodiscard]] Row* first_of(const Group& group);
  [[nodiscard]] const Row* first_of(const Group& group) const;
  [[nodiscard]] bool known(TaskId task) const noexcept { return task.value < tasks_.size(); }
  [[nodiscard]] Status refuse(Refusal reason, Errc code, const std::string& detail);
  [[nodiscard]] Status refuse(Refusal reason, const std::string& detail) {
    return refuse(reason, Errc::kInvalidArgument, detail);
  }

  // Why a call, or one row of it, is refused.
  struct Fault {
    Refusal reason = Refusal::kNotLeased;
    std::string detail = {};
  };
  // What a settlement has found for each row of its call.
  struct NamedRow {
    Row* row = nullptr;  // null: not live when the call began
    std::optional<Fault> fault;
  };

  // Writing.
  [[nodiscard]] std::optional<Fault> check_cells(SampleId row,
                                                 std::span<const CellInfo> cells) const;
  [[nodiscard]] std::string column_text(SampleId row, ColumnId column) const;
  [[nodiscard]] Status check_live_row(const Row& row, const SampleRow& named,
                                      std::span<const CellInfo> columns);
  [[nodiscard]] Status check_new_row(const SampleRow& row);
  [[nodiscard]] Status check_group_index(const Group& group, const SampleRow& row);
  [[nodiscard]] Status check_byte_limit(const SampleRow& row);
  Row& admit(const SampleRow& info);
  Group& group_for(const SampleRow& row);
  void link(Group& group, Row& row);
  void unlink(Group& group, const Row& row);
  void write(Row& row, std::span<const CellInfo> columns, const RowFacts& facts);
  void change_bytes(Row& row, std::uint64_t added, std::uint64_t removed);
  [[nodiscard]] std::uint64_t reservation(std::uint64_t bytes) const noexcept;

  // Cells: only these functions change a state, a counter or a set of units.
  void set_state(Row& row, std::uint32_t task, CellState state);
  void count(const Row& row, std::uint32_t task, CellState before, CellState after);
  void sync_row(const Row& row, std::uint32_t task, CellState before);
  void sync_group(const Group& group, std::uint32_t task);
  void leave_task(Row& row, std::uint32_t task);

  // Delivery.
  void drop_stale(Task& task, std::uint32_t index);
  void drop_stale_group(Task& task, std::uint32_t index, Group& group, const std::string& why);
  void select(const Task& task, const LeaseOptions& request);
  void grant_over_ranks(const LeaseOptions& request, Slot consumer, Grant& grant);
  [[nodiscard]] std::uint64_t tokens_of(const Task& task, Unit unit) const;
  void grant_unit(Unit unit, const LeaseOptions& request, Slot consumer, TimePoint deadline,
                  GrantedShare& share);
  void grant_row(Row& row, const LeaseOptions& request, Slot consumer, TimePoint deadline,
                 GrantedShare& share);
  void return_leases(std::span<const TaskRow> leased, const std::string& why);
  void return_row(Row& row, TaskId task, const ReleaseOptions& options);

  // Settlement.
  [[nodiscard]] Status begin_settlement(TaskId task, std::span<const HeldRowInfo> rows,
                                        TimePoint now);
  [[nodiscard]] Status check_whole_groups(const TaskOptions& task,
                                          std::span<const HeldRowInfo> rows);
  void check_leases(const LeaseHolder& holder, std::span<const HeldRowInfo> rows);
  [[nodiscard]] std::optional<Fault> check_outputs(const Task& task, const Row& row,
                                                   const HeldRowInfo& held) const;
  [[nodiscard]] std::optional<Fault> check_progress(const Task& task, const HeldRowInfo& row) const;
  void refuse_whole_groups(TaskId task);
  void replace_progress(Row& row, const Task& task, std::span<const CellInfo> cells,
                        std::uint64_t old_bytes);
  [[nodiscard]] Row* find_leased(SampleId id, TaskId task);
  void return_faulty_rows(TaskId task, std::span<const HeldRowInfo> rows);
  void report(std::span<const HeldRowInfo> rows, Settlement& settlement);
  void settle(Row& row, std::uint32_t task, CellState state);

  // Leaving.
  void accept(Row& row);
  void fail(Row& row, const std::string& reason);
  void retire(Row& row, RowOutcome outcome, const std::string& reason);
  void close(Group& group, const Verdict& verdict);
  void remove_group(Group& group, RowOutcome outcome);
  void release_slots(std::int64_t size, std::int64_t accepted, bool trained, RowOutcome outcome);

  // History and inspection.
  [[nodiscard]] RowSnapshot store_row(const Row& row) const;
  [[nodiscard]] Status load(const IndexSnapshot& snapshot);
  [[nodiscard]] Status load_group(const GroupSnapshot& stored);
  [[nodiscard]] Status load_row(const RowSnapshot& stored);
  [[nodiscard]] std::vector<SampleId> rows_of(const Task& task, Unit unit) const;
  [[nodiscard]] std::string describe_group(const Group& group, std::uint32_t task) const;
  [[nodiscard]] std::string describe_row(const Row& row, std::uint32_t task) const;
  [[nodiscard]] Status check_group(const Group& group) const;
  [[nodiscard]] Status check_row(const Row& row) const;
  [[nodiscard]] Status check_cell(const Row& row, std::uint32_t task) const;
  [[nodiscard]] Status check_task(std::uint32_t index) const;
  [[nodiscard]] Status check_sums() const;

  StreamOptions options_;
  std::vector<Task> tasks_;
  std::uint64_t accept_bit_ = 0;  // 0: slots are not counted
  internal::Records<Row, Cell> rows_;
  internal::Records<Group, GroupCell> groups_;
  internal::AdmittedRows admitted_;
  IdMap group_at_;  // groups by their position in the order
  LeaseTable leases_;
  TimePoint now_ = TimePoint::min();
  std::uint64_t version_ = 0;
  std::uint64_t next_row_ = 0;
  std::uint64_t next_group_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t bytes_used_ = 0;
  std::uint64_t bytes_reserved_ = 0;
  HeldSlots held_;
  StreamTotals totals_;
  StreamEffects effects_;
  std::array<std::uint64_t, kNumRefusals> refused_{};
  mutable WorkCounters work_;
  // Memory of one call, which later calls reuse.
  struct Scratch {
    std::vector<Unit> units;
    std::vector<std::pair<Unit, std::uint64_t>> stale;
    std::vector<TaskRow> returned;
    std::vector<SampleId> ids;
    std::vector<NamedRow> named;
    bool any_refused = false;  // of `named`
  };
  Scratch scratch_;
};

}  // namespace tidemill::storage
