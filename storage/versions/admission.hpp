// SPDX-License-Identifier: Apache-2.0
// The only valve of a run: how many rows may be in flight so that none grows too stale.
//
// Every admitted row holds one place, in flight at first (`running`) and counted once its response
// is finished (`accepted`). Each trained batch consumes `batch` places, whatever it held. A row
// admitted at version v stands behind at most (max_staleness + v + 1) * batch places, the consumed
// ones included; a trainer that takes whole groups in admission order therefore reaches it in the
// batch it trains at version v + max_staleness or earlier. The bound needs that order: see the
// stream's `DeliveryOrder::kStrict`.
//
// A place is freed before the response is finished by `abort` (failed) or `reject` (filtered), and
// after it by `forfeit` (the group leaves without being trained). Freed places move the rows behind
// them forward, never back, so the bound survives them. Whole groups give places back together.
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

/// The ledger's whole state: what a checkpoint keeps.
struct AdmissionState {
  std::int64_t version = 0;
  std::int64_t running = 0;
  std::int64_t accepted = 0;  // since ever, less what was forfeited
  std::int64_t rejected = 0;  // since the last restart
  std::int64_t aborted = 0;   // since the last restart
  friend bool operator==(const AdmissionState&, const AdmissionState&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, AdmissionState& x) {
  return f(x.version, x.running, x.accepted, x.rejected, x.aborted);
}

/// Counts the places of a run by the capacity rule
/// `capacity = min(max_concurrent - running, (max_staleness + version + 1) * batch - accepted -
/// running)`.
///
/// A refused event changes nothing; its message begins with the reason, and it is counted.
/// Units: rows, versions (trained batches).
/// Source: Fu et al. 2025 (AReaL), arXiv:2505.24298; `forfeit` and the errors are this project's.
/// Errors: `bad_count` (a negative count, or one whose sum would not fit 64 bits), `underflow`,
/// `version_regress`.
/// Threads: one call at a time.
class AdmissionLedger {
public:
  /// Starts a ledger with nothing in flight.
  /// Errors: `kInvalidArgument` if `max_staleness` or `version` is negative.
  [[nodiscard]] static Result<AdmissionLedger> create(const AdmissionOptions& options);

  /// Returns how many rows may be admitted now. Negative after `force_submit` or `resize`.
  [[nodiscard]] std::int64_t capacity() const noexcept;
  [[nodiscard]] const AdmissionState& state() const noexcept { return state_; }
  [[nodiscard]] const AdmissionOptions& options() const noexcept { return options_; }
  /// Returns the rows accepted and not yet consumed by a trained batch: what may be forfeited.
  [[nodiscard]] std::int64_t untrained() const noexcept;
  /// Returns how often an event was refused for `reason`.
  [[nodiscard]] std::uint64_t refused(Refusal reason) const noexcept;

  /// Admits up to `rows` and returns how many. Who admits whole groups asks for a multiple of their
  /// size that `capacity` allows.
  [[nodiscard]] Result<std::int64_t> submit(std::int64_t rows);
  /// Admits `rows` whatever the capacity: rows that were admitted before a restart.
  [[nodiscard]] Status force_submit(std::int64_t rows);
  /// Counts finished responses.
  [[nodiscard]] Status accept(std::int64_t rows);
  /// Frees the places of rows filtered before their response was finished.
  [[nodiscard]] Status reject(std::int64_t rows);
  /// Frees the places of rows that failed before their response was finished.
  [[nodiscard]] Status abort(std::int64_t rows);
  /// Frees the places of finished rows whose group leaves untrained.
  [[nodiscard]] Status forfeit(std::int64_t rows);
  /// Does what a stream reports: accept, abort, reject and forfeit, all or none of them.
  [[nodiscard]] Status apply(const PlaceChanges& changes);
  /// Raises the version: one more batch was trained and published.
  [[nodiscard]] Status set_version(std::int64_t version);
  /// Starts again at a committed version with `unconsumed` finished, untrained rows. Rows admitted
  /// but not finished at that commit are admitted again by `force_submit`.
  [[nodiscard]] Status restart(std::int64_t version, std::int64_t unconsumed);
  /// Changes `max_concurrent`. Nothing in flight is stopped.
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
