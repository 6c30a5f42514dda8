// SPDX-License-Identifier: Apache-2.0
// How rows leave a stream, and what that means for the places they held.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.hpp"

namespace tidemill::storage {

/// A decision that takes rows out of a stream for all tasks.
enum class VerdictKind : std::uint8_t {
  kDrop,    // not wanted any more: stale, or its group lost a row
  kFilter,  // carries no signal
  kFail,    // could not be processed
};

/// A decision and its reason, as a user reads it.
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

/// What the version keeper must be told: rows that changed their place in its admission ledger.
struct PlaceChanges {
  std::int64_t accepted = 0;   // response finished; or failed inside a group that goes on
  std::int64_t aborted = 0;    // left before the response was finished
  std::int64_t rejected = 0;   // filtered before the response was finished
  std::int64_t forfeited = 0;  // finished, but its group left without being trained
  friend bool operator==(const PlaceChanges&, const PlaceChanges&) = default;
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
typename Inspector::result_type inspect(Inspector& f, PlaceChanges& x) {
  return f(x.accepted, x.aborted, x.rejected, x.forfeited);
}

}  // namespace tidemill::storage
