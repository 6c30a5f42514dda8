// SPDX-License-Identifier: Apache-2.0
// How rows leave a stream, and what that means for their admission slots.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.hpp"

namespace tidemill::storage {

/// Why rows are removed from a stream for all tasks.
enum class VerdictKind : std::uint8_t {
  kDrop,    // no longer wanted: stale, or its group lost a row
  kFilter,  // carries no signal
  kFail,    // could not be processed
};

/// A decision that removes rows from a stream for all tasks, with its reason in words.
struct Verdict {
  VerdictKind kind = VerdictKind::kDrop;
  std::string reason = {};
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// How a row left.
enum class RowOutcome : std::uint8_t { kTrained, kDropped, kFiltered, kFailed };

/// Returns "trained", "dropped", "filtered" or "failed".
[[nodiscard]] std::string_view row_outcome_name(RowOutcome outcome) noexcept;

/// A row that left.
struct RetiredRow {
  SampleId id;
  GroupId group;
  RowOutcome outcome = RowOutcome::kTrained;
  std::string reason = {};  // empty when trained
  friend bool operator==(const RetiredRow&, const RetiredRow&) = default;
};

/// How many rows changed their state in the admission ledger. The version keeper must apply these
/// changes.
struct SlotChanges {
  std::int64_t accepted = 0;   // response finished, or row retired from a group that continues
  std::int64_t aborted = 0;    // left before the response was finished
  std::int64_t rejected = 0;   // filtered before the response was finished
  std::int64_t forfeited = 0;  // response finished, but the group left without being trained
  friend bool operator==(const SlotChanges&, const SlotChanges&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Verdict& x) {
  return f(x.kind, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RetiredRow& x) {
  return f(x.id, x.group, x.outcome, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SlotChanges& x) {
  return f(x.accepted, x.aborted, x.rejected, x.forfeited);
}

}  // namespace tidemill::storage
