// SPDX-License-Identifier: Apache-2.0
// The reasons for which a stream refuses an operation. Every refusal is counted under its reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidemill::storage {

/// Why a stream refused an operation, or one row of it.
enum class Refusal : std::uint8_t {
  kUnknownTask,
  kUnknownColumn,
  kDuplicateColumn,  // twice in one write, or already written
  kBadColumn,        // a value of another type, or not the columns the task declared
  kNoGroups,         // the stream was declared without groups
  kBadGroup,         // group size or index contradicts the declaration or the group's other rows
  kGroupFull,
  kGroupRetired,   // the group has left; its id is not used again
  kGroupMismatch,  // the row belongs to another group
  kRowRetired,     // the row has left, or its id is out of admission order
  kUnknownRow,     // no such row is live
  kByteLimit,      // a new group would start above the byte limit
  kBadCount,
  kDuplicateRow,     // twice in one call
  kPartialGroup,     // a task that takes whole groups was given a part of one
  kNotLeased,        // the lease expired, was returned, or never was
  kOldLease,         // the row has been leased again since
  kGroupRefused,     // another row of the same group was refused
  kTimeRegress,      // the clock went back
  kVersionRegress,   // the version went back
  kUnderflow,        // more is given back than was taken
  kUnknownEvent,     // not an event of the protocol
  kForeignSnapshot,  // a snapshot of a stream declared otherwise
};

/// The number of reasons.
inline constexpr std::size_t kNumRefusals = static_cast<std::size_t>(Refusal::kForeignSnapshot) + 1;

/// Returns the stable name of a reason, e.g. "group_full": messages begin with it, counters bear
/// it.
[[nodiscard]] std::string_view refusal_name(Refusal reason) noexcept;

}  // namespace tidemill::storage
