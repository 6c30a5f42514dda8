// SPDX-License-Identifier: Apache-2.0
// The declaration of a stream: its columns, its tasks, its limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/dtype.hpp"
#include "base/status.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// The most columns a stream may declare: presence is one bit each.
inline constexpr std::size_t kMaxColumns = 64;
/// The most tasks a stream may declare.
inline constexpr std::size_t kMaxTasks = 32;
/// The most rows a group may have.
inline constexpr std::uint32_t kMaxGroupSize = 65536;
/// The longest lease a task may declare.
inline constexpr Duration kMaxLease = std::chrono::hours(24 * 365);

/// What the cells of a column hold.
enum class ColumnType : std::uint8_t { kInt32, kFloat, kU8, kBytes, kString };

/// Returns "int32", "float", "u8", "bytes" or "string".
[[nodiscard]] std::string_view column_type_name(ColumnType type) noexcept;

/// Returns whether a cell of `bytes` bytes of `dtype` elements may stand in a column of `type`: the
/// same element type, a whole number of them. An empty cell fits everywhere.
[[nodiscard]] bool cell_fits(ColumnType type, DType dtype, std::uint64_t bytes) noexcept;

/// Declares a column.
struct ColumnOptions {
  std::string name;
  ColumnType type = ColumnType::kBytes;
};

/// What one delivery consists of.
enum class DeliveryUnit : std::uint8_t {
  kRow,    // a ready row
  kGroup,  // a complete group; rows without a group are never delivered
};

/// Which ready units a task receives.
enum class DeliveryOrder : std::uint8_t {
  kOldestReady,  // the oldest admitted among the ready
  kStrict,       // admission order: a unit is delivered only after every older live one
};

/// What a fetch does with ready units older than `max_staleness`.
enum class StalePolicy : std::uint8_t {
  kWait,         // passes over them; they stay ready
  kDropForTask,  // takes them from this task alone; other tasks go on
  kDrop,         // gives their rows the verdict `drop`
};

/// Declares a task: who leases which rows, and what it writes.
struct TaskOptions {
  std::string name;
  std::vector<std::string> inputs;        // columns that make a row ready; at least one
  std::vector<std::string> outputs = {};  // columns that a completion writes, all of them
  DeliveryUnit unit = DeliveryUnit::kRow;
  DeliveryOrder order = DeliveryOrder::kOldestReady;
  /// 0: one list of at most the asked number of units. Above: exactly the asked number, dealt to so
  /// many ranks in equal shares with balanced token sums.
  std::uint32_t ranks = 0;
  Duration lease = std::chrono::seconds(60);
  std::optional<std::uint64_t> max_staleness = std::nullopt;  // versions; none: not judged
  StalePolicy stale_policy = StalePolicy::kDrop;
};

/// What happens to the rest of a group when one of its rows fails.
enum class OnFailedRow : std::uint8_t {
  kDropGroup,  // the other rows get the verdict `drop`
  kShrink,     // the group goes on without it and keeps its place
};

/// Declares a stream.
struct StreamOptions {
  std::string name = "samples";
  std::vector<ColumnOptions> columns;
  std::vector<TaskOptions> tasks;
  std::uint32_t max_group_size = 0;  // 0: rows have no groups
  /// A row that came back from a task this often fails. 0: no limit.
  std::uint32_t max_deliveries = 3;
  OnFailedRow on_failed = OnFailedRow::kDropGroup;
  /// The column whose write means that the response is finished, which is what `PlaceChanges`
  /// count. Empty: places are not counted.
  std::string accept_column;
  /// Bytes of columns the stream may hold. 0: no limit. Room is kept for every live group to grow
  /// to `group_bytes`, so that a producer inside a group can always finish it.
  std::uint64_t limit_bytes = 0;
  /// The most bytes the columns of one group (of one row, if it has no group) take when finished.
  /// A group that grows beyond it is taken in and counted, and holds new ones back.
  std::uint64_t group_bytes = 0;

  [[nodiscard]] std::optional<ColumnId> find_column(std::string_view column) const;
  [[nodiscard]] std::optional<TaskId> find_task(std::string_view task) const;
};

/// Checks a declaration.
/// Errors: `kInvalidArgument` naming the stream and the field: no columns or tasks, too many, empty
/// or double names, unknown columns, a task without inputs, a column written by two tasks, groups
/// where there are none, a lease out of range, a byte limit smaller than one group.
[[nodiscard]] Status check_options(const StreamOptions& options);

}  // namespace tidemill::storage
