// SPDX-License-Identifier: Apache-2.0
// The reasons for which a stream or an admission ledger refuses a call. Refusals are counted by
// reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidemill::storage {

/// Why a call, or one row of it, was refused.
enum class Refusal : std::uint8_t {
  kUnknownTask,
  kUnknownColumn,
  kDuplicateColumn,  // twice in one write, or already written
  kBadColumn,        // a cell breaks the rules of its column, or the task may not write it
  kNoGroups,         // the stream was declared without groups
  kBadGroup,         // group size or index contradicts the declaration or the group's other rows
  kGroupFull,
  kGroupRetired,   // the group has left; its id is never used again
  kGroupMismatch,  // the row belongs to another group
  kRowRetired,     // the row has left, or its id is out of admission order
  kUnknownRow,     // no such row is live
  kByteLimit,      // a new group would exceed the byte limit
  kBadCount,
  kDuplicateRow,      // twice in one call
  kPartialGroup,      // a task that takes whole groups named only a part of one
  kNotLeased,         // the lease expired, was returned, or never existed
  kOldLease,          // the row has since been leased again
  kOtherIncarnation,  // another incarnation of the stream granted the lease
  kOtherConsumer,     // another consumer holds the lease
  kGroupRefused,      // another row of the same group was refused
  kTimeRegress,       // the clock went back
  kVersionRegress,    // the version went back
  kUnderflow,         // more slots are given back than are held
  kUnknownEvent,      // not an event of the protocol
  kForeignSnapshot,   // a snapshot of a stream with another declaration
};

/// The number of reasons.
inline constexpr std::size_t kNumRefusals = static_cast<std::size_t>(Refusal::kForeignSnapshot) + 1;

/// Returns whether a row was refused because of the cells that its consumer wrote. Such a refusal
/// counts as a failed delivery.
[[nodiscard]] constexpr bool is_content_refusal(Refusal reason) noexcept {
  return reason == Refusal::kUnknownColumn || reason == Refusal::kDuplicateColumn ||
         reason == Refusal::kBadColumn;
}

/// Returns the stable name of a reason, e.g. "group_full". Messages begin with it, and counters are
/// named after it.
[[nodiscard]] std::string_view refusal_name(Refusal reason) noexcept;

}  // namespace tidemill::storage
