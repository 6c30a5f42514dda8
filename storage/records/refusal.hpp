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
  kBadColumn,        // a value of another type, or columns other than the task's outputs
  kNoGroups,         // the stream was declared without groups
  kBadGroup,         // group size or index contradicts the declaration or the group's other rows
  kGroupFull,
  kGroupRetired,   // the group has left; its id is never used again
  kGroupMismatch,  // the row belongs to another group
  kRowRetired,     // the row has left, or its id is out of admission order
  kUnknownRow,     // no such row is live
  kByteLimit,      // a new group would exceed the byte limit
  kBadCount,
  kDuplicateRow,     // twice in one call
  kPartialGroup,     // a task that takes whole groups named only a part of one
  kNotLeased,        // the lease expired, was returned, or never existed
  kOldLease,         // the row has since been leased again
  kGroupRefused,     // another row of the same group was refused
  kTimeRegress,      // the clock went back
  kVersionRegress,   // the version went back
  kUnderflow,        // more slots are given back than are held
  kUnknownEvent,     // not an event of the protocol
  kForeignSnapshot,  // a snapshot of a stream with another declaration
};

/// The number of reasons.
inline constexpr std::size_t kNumRefusals = static_cast<std::size_t>(Refusal::kForeignSnapshot) + 1;

/// Returns the stable name of a reason, e.g. "group_full". Messages begin with it, and counters are
/// named after it.
[[nodiscard]] std::string_view refusal_name(Refusal reason) noexcept;

}  // namespace tidemill::storage
