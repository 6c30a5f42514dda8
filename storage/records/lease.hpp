// SPDX-License-Identifier: Apache-2.0
// The records that a stream and the consumer of a lease exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.hpp"
#include "storage/records/refusal.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// Proves that its holder leased a row. A later lease of the same row has a greater generation.
struct LeaseToken {
  SampleId row;
  std::uint64_t generation = 0;
  friend auto operator<=>(const LeaseToken&, const LeaseToken&) = default;
};

/// A leased row, as a task receives it.
struct LeasedRow {
  SampleRow row;
  LeaseToken lease;
  std::uint32_t deliveries = 0;      // earlier deliveries to this task that were returned
  RowFacts facts;                    // at the time of the lease
  std::vector<ColumnValue> columns;  // the task's inputs, in the order of its declaration
};

/// A finished row, as a task hands it back with all its output columns.
struct FinishedRow {
  LeaseToken lease;
  std::vector<ColumnValue> columns = {};
  RowFacts facts = {};
};

/// Why a row comes back without outputs.
enum class Release : std::uint8_t {
  kLost,    // its consumer or a message was lost; says nothing about the row
  kFailed,  // the row could not be processed; counts toward `StreamOptions::max_deliveries`
};

/// A lease that was refused, and why. The same consumer may have leased the row again since. The
/// generation tells which of its leases was refused.
struct RefusedRow {
  LeaseToken lease;
  Refusal reason = Refusal::kNotLeased;
  friend bool operator==(const RefusedRow&, const RefusedRow&) = default;
};

/// The result for each row of a call, in the order of the call.
struct Settlement {
  std::vector<SampleId> done;
  std::vector<RefusedRow> refused;
  friend bool operator==(const Settlement&, const Settlement&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeaseToken& x) {
  return f(x.row, x.generation);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeasedRow& x) {
  return f(x.row, x.lease, x.deliveries, x.facts, x.columns);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, FinishedRow& x) {
  return f(x.lease, x.columns, x.facts);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RefusedRow& x) {
  return f(x.lease, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Settlement& x) {
  return f(x.done, x.refused);
}

}  // namespace tidemill::storage
