// SPDX-License-Identifier: Apache-2.0
// The admission ledger bounds staleness by limiting how many rows may be in flight. The only other
// limit on rows in flight is the stream's byte limit.
//
// Slots. Every admitted row holds one slot. The slot counts as `running` until the response of the
// row is finished, and as `accepted` from then on. Each trained batch consumes `batch` slots, even
// if it contained fewer rows.
//
// Bound. Number the slots from 0, including those that earlier batches consumed. A row that is
// admitted at version v gets one of the first (max_staleness + v + 1) * batch slots. If the trainer
// takes whole groups in admission order, the batch that is trained at version k takes the slots
// from k * batch to (k + 1) * batch - 1. The trainer therefore reaches the row at version
// v + max_staleness at the latest. The bound needs two things. The capacity rule limits how many
// rows are ahead of a row. The order (`DeliveryOrder::kStrict` of the stream) ensures that no later
// row is trained before it.
//
// Freed slots. Before the response is finished, `abort` (failed) and `reject` (filtered) free a
// slot. Afterwards, `forfeit` frees it if the group leaves without being trained. Freeing a slot
// moves later rows forward, never back, so the bound still holds. The slots of a group are freed
// together.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.hpp"
#include "storage/records/refusal.hpp"
#include "storage/records/verdict.hpp"

namespace tidemill::storage {

/// Configures an `AdmissionLedger`.
struct AdmissionOptions {
  std::int64_t max_concurrent = 1;  // rows in flight; below 1 counts as 1
  std::int64_t batch = 1;           // rows: prompts per step x group size; below 1 counts as 1
  std::int64_t max_staleness = 0;   // versions
  std::int64_t version = 0;         // at the start
};

/// The whole state of a ledger.
struct AdmissionState {
  std::int64_t version = 0;
  std::int64_t running = 0;
  std::int64_t accepted = 0;  // since the start of the run, excluding forfeited rows
  std::int64_t rejected = 0;  // since the last restart
  std::int64_t aborted = 0;   // since the last restart
  friend bool operator==(const AdmissionState&, const AdmissionState&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, AdmissionState& x) {
  return f(x.version, x.running, x.accepted, x.rejected, x.aborted);
}

/// Counts the slots of a run by the capacity rule
/// `capacity = min(max_concurrent - running, (max_staleness + version + 1) * batch - accepted -
/// running)`.
///
/// A refused event changes no state. The message of the error begins with the reason, and the
/// refusal is counted under that reason.
/// Units: rows, versions (trained batches).
/// Source: Fu et al. 2025 (AReaL), arXiv:2505.24298; `forfeit` and the errors are additions.
/// Errors: `kInvalidArgument` with the reason `bad_count` (a negative count, or one whose sum does
/// not fit in 64 bits) or `underflow` (more slots than rows hold); `kStaleVersion` with the reason
/// `version_regress`.
/// Threads: one call at a time.
class AdmissionLedger {
public:
  /// Starts a ledger with nothing in flight.
  /// Errors: `kInvalidArgument` if `max_staleness` or `version` is negative.
  [[nodiscard]] static Result<AdmissionLedger> create(const AdmissionOptions& options);

  /// Returns how many rows may be admitted now. May be negative after `force_submit`, `resize` or
  /// `restart`.
  [[nodiscard]] std::int64_t capacity() const noexcept;
  [[nodiscard]] const AdmissionState& state() const noexcept { return state_; }
  [[nodiscard]] const AdmissionOptions& options() const noexcept { return options_; }
  /// Returns how many accepted rows have not been consumed by a trained batch. These may be
  /// forfeited.
  [[nodiscard]] std::int64_t untrained() const noexcept;
  /// Returns how often an event was refused for `reason`.
  [[nodiscard]] std::uint64_t refused(Refusal reason) const noexcept;

  /// Admits up to `rows` rows and returns how many it admitted. A caller that admits whole groups
  /// must ask for a multiple of the group size that is at most `capacity`.
  [[nodiscard]] Result<std::int64_t> submit(std::int64_t rows);
  /// Admits `rows` rows regardless of capacity. Meant for rows that were admitted before a restart.
  [[nodiscard]] Status force_submit(std::int64_t rows);
  /// Moves the slots of finished responses from `running` to `accepted`.
  [[nodiscard]] Status accept(std::int64_t rows);
  /// Frees the slots of rows that were filtered before their response was finished.
  [[nodiscard]] Status reject(std::int64_t rows);
  /// Frees the slots of rows that failed before their response was finished.
  [[nodiscard]] Status abort(std::int64_t rows);
  /// Frees the slots of finished rows whose group leaves without being trained.
  [[nodiscard]] Status forfeit(std::int64_t rows);
  /// Applies the changes that a stream reports, in the order accept, abort, reject, forfeit.
  /// Applies all of them or none.
  [[nodiscard]] Status apply(const SlotChanges& changes);
  /// Sets the version after a batch was trained and published. Refuses an older version.
  [[nodiscard]] Status set_version(std::int64_t version);
  /// Starts again at a committed version with `unconsumed` finished but untrained rows. Rows that
  /// were admitted but not finished at that commit are admitted again by `force_submit`.
  [[nodiscard]] Status restart(std::int64_t version, std::int64_t unconsumed);
  /// Changes `max_concurrent`. Rows in flight are not stopped.
  void resize(std::int64_t max_concurrent) noexcept;

private:
  explicit AdmissionLedger(const AdmissionOptions& options);
  [[nodiscard]] Status refuse(Refusal reason, const char* event, std::int64_t rows,
                              std::int64_t at_most);
  [[nodiscard]] Status finish(const char* event, std::int64_t rows, std::int64_t& counter);

  AdmissionOptions options_;
  AdmissionState state_;
  std::array<std::uint64_t, kNumRefusals> refused_{};
};

}  // namespace tidemill::storage
