// SPDX-License-Identifier: Apache-2.0
// Names of the reasons for refusals.
#include "storage/records/refusal.hpp"

namespace tidemill::storage {

std::string_view refusal_name(Refusal reason) noexcept {
  switch (reason) {
    case Refusal::kUnknownTask: return "unknown_task";
    case Refusal::kUnknownColumn: return "unknown_column";
    case Refusal::kDuplicateColumn: return "duplicate_column";
    case Refusal::kBadColumn: return "bad_column";
    case Refusal::kNoGroups: return "no_groups";
    case Refusal::kBadGroup: return "bad_group";
    case Refusal::kGroupFull: return "group_full";
    case Refusal::kGroupRetired: return "group_retired";
    case Refusal::kGroupMismatch: return "group_mismatch";
    case Refusal::kRowRetired: return "row_retired";
    case Refusal::kUnknownRow: return "unknown_row";
    case Refusal::kByteLimit: return "byte_limit";
    case Refusal::kBadCount: return "bad_count";
    case Refusal::kDuplicateRow: return "duplicate_row";
    case Refusal::kPartialGroup: return "partial_group";
    case Refusal::kNotLeased: return "not_leased";
    case Refusal::kOldLease: return "old_lease";
    case Refusal::kOtherIncarnation: return "other_incarnation";
    case Refusal::kOtherConsumer: return "other_consumer";
    case Refusal::kGroupRefused: return "group_refused";
    case Refusal::kTimeRegress: return "time_regress";
    case Refusal::kVersionRegress: return "version_regress";
    case Refusal::kUnderflow: return "underflow";
    case Refusal::kUnknownEvent: return "unknown_event";
    case Refusal::kForeignSnapshot: return "foreign_snapshot";
  }
  return "unknown";
}

}  // namespace tidemill::storage
