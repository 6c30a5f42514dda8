// SPDX-License-Identifier: Apache-2.0
// The declaration of a stream: its columns, its tasks and its limits.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "base/tensor/dtype.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// The maximum number of columns in a stream: the presence of each is one bit.
inline constexpr std::size_t kMaxColumns = 64;
/// The maximum number of tasks in a stream.
inline constexpr std::size_t kMaxTasks = 32;
/// The maximum number of rows in a group.
inline constexpr std::uint32_t kMaxGroupSize = 65536;
/// The longest lease that a task may declare.
inline constexpr Duration kMaxLease = std::chrono::hours(24 * 365);

/// The type of the cells of a column. Cells of `kDouble` (float64) and `kUInt64` are buffers of
/// bytes.
enum class ColumnType : std::uint8_t { kInt32, kFloat, kU8, kBytes, kString, kDouble, kUInt64 };

/// Returns the bytes of an element of a column of `type`.
[[nodiscard]] std::uint64_t element_bytes(ColumnType type) noexcept;

/// Returns whether a cell of `bytes` bytes with elements of `dtype` fits a column of `type`: it
/// must consist of whole elements of the column's type. An empty cell fits every column.
[[nodiscard]] bool cell_fits(ColumnType type, DType dtype, std::uint64_t bytes) noexcept;

/// Which values the elements of a cell may have.
enum class CellValues : std::uint8_t {
  kAny,
  kFinite,       // of `kFloat` and `kDouble`
  kNotNegative,  // of `kInt32`
  kFlags,        // 0 or 1, of `kU8`
};

/// What makes a cell valid, besides its type. `CellChecker` checks it before the cell is written.
struct CellRule {
  std::uint64_t min_elements = 0;
  std::uint64_t max_elements = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t multiple_of = 1;  // elements
  /// The column of the same row whose cell has as many elements. Empty: none.
  std::string as_long_as = {};
  /// For cells that are records of `multiple_of` elements of `kUInt64`: the last elements of all
  /// records add up to the number of elements of this column's cell. Empty: they need not.
  std::string counts = {};
  CellValues values = CellValues::kAny;
};

/// Declares a column.
struct ColumnOptions {
  std::string name;
  ColumnType type = ColumnType::kBytes;
  CellRule rule = {};
};

/// What one delivery consists of.
enum class DeliveryUnit : std::uint8_t {
  kRow,    // a ready row
  kGroup,  // a complete group; rows without a group are never delivered
};

/// The order in which a task receives ready units.
enum class DeliveryOrder : std::uint8_t {
  kOldestReady,  // the ready units, oldest admission first
  kStrict,       // admission order: a unit is delivered only after every older live unit
};

/// What `lease` does with ready units that are older than `max_staleness`. Runs use `kDrop`. The
/// golden traces, which come from another implementation, use the other two.
enum class StalePolicy : std::uint8_t {
  kWait,         // passes over them; they stay ready
  kDropForTask,  // removes them from this task only
  kDrop,         // removes their rows by the verdict `drop`
};

/// Declares a task: which rows it leases and what it writes.
struct TaskOptions {
  std::string name;
  std::vector<std::string> inputs;        // columns that make a row ready; at least one
  std::vector<std::string> outputs = {};  // columns that a completion writes, all of them
  DeliveryUnit unit = DeliveryUnit::kRow;
  DeliveryOrder order = DeliveryOrder::kOldestReady;
  /// 0: a lease returns one share of at most the requested number of units. Otherwise: a lease
  /// returns exactly the requested number, distributed over this many ranks in equal shares with
  /// balanced token sums.
  std::uint32_t ranks = 0;
  Duration lease = std::chrono::seconds(60);
  std::optional<std::uint64_t> max_staleness = std::nullopt;  // in versions; none: never stale
  StalePolicy stale_policy = StalePolicy::kDrop;
  std::vector<std::string> optional_inputs = {};   // delivered if present; a row is ready without
  std::vector<std::string> optional_outputs = {};  // columns that a completion may write too
  /// Columns for what a consumer has made of a row so far. A renewal, or a release that leaves the
  /// row, may write them, all of them; they replace those that the row had. Every delivery to this
  /// task carries them, and the ack erases them.
  std::vector<std::string> progress = {};
};

/// What happens to the rest of a group when one of its rows fails.
enum class OnFailedRow : std::uint8_t {
  kDropGroup,  // the other rows are removed by the verdict `drop`
  kShrink,     // the group continues without it; its slot stays with the group
};

/// Declares a stream.
struct StreamOptions {
  std::string name = "samples";
  /// The start of the run that this stream belongs to. Leases of other incarnations are refused.
  std::uint32_t incarnation = 0;
  std::vector<ColumnOptions> columns;
  std::vector<TaskOptions> tasks;
  std::uint32_t max_group_size = 0;  // 0: rows have no groups
  /// A row fails once this many of its deliveries to one task have failed. Deliveries that were
  /// left or lost (an expired lease, a consumer that is gone) do not count. 0: no limit.
  std::uint32_t max_deliveries = 3;
  OnFailedRow on_failed = OnFailedRow::kDropGroup;
  /// The column whose write means that the response is finished. `SlotChanges` depends on it.
  /// Empty: slots are not counted.
  std::string accept_column;
  /// Bytes of columns that the stream may hold. 0: no limit. Space is reserved for every live group
  /// to grow to `group_bytes`, so that a producer that has started a group can always finish it.
  std::uint64_t limit_bytes = 0;
  /// The maximum bytes of a finished group's columns (of a row's, if it has no group). A group that
  /// grows beyond it is still accepted and counted, but delays new groups.
  std::uint64_t group_bytes = 0;

  [[nodiscard]] std::optional<ColumnId> find_column(std::string_view column) const;
  [[nodiscard]] std::optional<TaskId> find_task(std::string_view task) const;
};

/// Checks a declaration.
/// Errors: `kInvalidArgument` naming the stream and the field: no columns or tasks, too many, empty
/// or duplicate names, unknown columns, a rule that no cell of its column can follow, a task
/// without inputs, a column written by two tasks, a progress column that a task reads, a task that
/// takes groups in a stream without groups, a lease out of range, a byte limit smaller than one
/// group.
[[nodiscard]] Status check_options(const StreamOptions& options);

}  // namespace tidemill::storage
