// SPDX-License-Identifier: Apache-2.0
// The records that a stream and the consumer of a lease exchange.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "storage/records/refusal.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// Proves that its holder leased a row. A later lease of the same row has a greater generation, and
/// a lease of another incarnation of the stream is never valid.
struct Lease {
  SampleId row;
  std::uint32_t incarnation = 0;  // of the stream that granted it
  std::uint64_t generation = 0;
  friend auto operator<=>(const Lease&, const Lease&) = default;
};

/// A leased row, as a task receives it.
struct LeasedRow {
  SampleRow row;
  Lease lease;
  std::uint32_t deliveries = 0;  // earlier deliveries to this task that were returned
  RowFacts facts;                // at the time of the lease
  /// The task's inputs, in the order of its declaration. After them, those of its optional inputs
  /// and of its progress columns that the row has.
  std::vector<ColumnValue> columns;
};

/// A leased row in an ack, a nack or a renewal.
struct HeldRow {
  Lease lease;
  /// For an ack: all outputs of the task, and any of its optional outputs. For a renewal or a nack
  /// with `Release::kLeft`: nothing, or all progress columns of the task, which replace the
  /// progress that the row had. For any other nack: nothing.
  std::vector<ColumnValue> columns = {};
  RowFacts facts = {};  // read by an ack only
};

/// Why a row comes back without outputs.
enum class Release : std::uint8_t {
  kLeft,    // its consumer leaves it on purpose, for example because it is shutting down
  kLost,    // its consumer or a message was lost
  kFailed,  // the row could not be processed; counts toward `StreamOptions::max_deliveries`
};

/// The deliveries to a task that were returned, by `Release`. They count from the start of a stream
/// and are not stored in its snapshots.
struct ReturnedDeliveries {
  std::uint64_t left = 0;
  std::uint64_t lost = 0;
  std::uint64_t failed = 0;
  friend bool operator==(const ReturnedDeliveries&, const ReturnedDeliveries&) = default;
};

/// A lease that was refused, and why. The consumer may have leased the row again since, so compare
/// `lease`.
struct RefusedRow {
  Lease lease;
  Refusal reason = Refusal::kNotLeased;
  std::string detail = {};  // what is wrong with the cells, if `is_content_refusal(reason)`
  friend bool operator==(const RefusedRow&, const RefusedRow&) = default;
};

/// The result for each row of a call, in the order of the call.
struct Settlement {
  std::vector<SampleId> done;
  std::vector<RefusedRow> refused;
  friend bool operator==(const Settlement&, const Settlement&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Lease& x) {
  return f(x.row, x.incarnation, x.generation);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeasedRow& x) {
  return f(x.row, x.lease, x.deliveries, x.facts, x.columns);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, HeldRow& x) {
  return f(x.lease, x.columns, x.facts);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ReturnedDeliveries& x) {
  return f(x.left, x.lost, x.failed);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RefusedRow& x) {
  return f(x.lease, x.reason, x.detail);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Settlement& x) {
  return f(x.done, x.refused);
}

}  // namespace tidemill::storage
