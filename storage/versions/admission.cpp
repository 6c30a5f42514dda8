// SPDX-License-Identifier: Apache-2.0
// The capacity rule in 64 bits. Products are computed in 128 bits and clamped; sums are checked.
#include "storage/versions/admission.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace tidemill::storage {
namespace {

__extension__ using Wide = __int128;  // holds a product of two 64-bit numbers, and sums of a few

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

std::int64_t clamp_to_64(Wide value) noexcept {
  if (value > Wide{kMax}) {
    return kMax;
  }
  return value < Wide{kMin} ? kMin : static_cast<std::int64_t>(value);
}

}  // namespace

AdmissionLedger::AdmissionLedger(const AdmissionOptions& options) : options_(options) {
  options_.max_concurrent = std::max<std::int64_t>(1, options.max_concurrent);
  options_.batch = std::max<std::int64_t>(1, options.batch);
  state_.version = options.version;
}

Result<AdmissionLedger> AdmissionLedger::create(const AdmissionOptions& options) {
  if (options.max_staleness < 0) {
    return invalid_argument("admission: max_staleness is " + std::to_string(options.max_staleness) +
                            ", must not be negative");
  }
  if (options.version < 0) {
    return invalid_argument("admission: version is " + std::to_string(options.version) +
                            ", must not be negative");
  }
  return AdmissionLedger(options);
}

std::int64_t AdmissionLedger::capacity() const noexcept {
  const Wide by_concurrency = Wide{options_.max_concurrent} - state_.running;
  const std::int64_t batches = clamp_to_64(Wide{options_.max_staleness} + state_.version + 1);
  const Wide by_staleness = Wide{batches} * options_.batch - state_.accepted - Wide{state_.running};
  return clamp_to_64(std::min(by_concurrency, by_staleness));
}

std::int64_t AdmissionLedger::untrained() const noexcept {
  return clamp_to_64(
      std::max(Wide{0}, Wide{state_.accepted} - Wide{state_.version} * options_.batch));
}

std::uint64_t AdmissionLedger::refused(Refusal reason) const noexcept {
  return refused_[static_cast<std::size_t>(reason)];
}

Status AdmissionLedger::refuse(Refusal reason, const char* event, std::int64_t rows,
                               std::int64_t at_most) {
  ++refused_[static_cast<std::size_t>(reason)];
  return invalid_argument(std::string(refusal_name(reason)) + ": admission: " + event + " of " +
                          std::to_string(rows) + ", must be 0 to " + std::to_string(at_most));
}

Result<std::int64_t> AdmissionLedger::submit(std::int64_t rows) {
  if (rows < 0) {
    return refuse(Refusal::kBadCount, "submit", rows, kMax);
  }
  const std::int64_t granted = std::max<std::int64_t>(0, std::min(rows, capacity()));
  state_.running += granted;  // at most max_concurrent
  return granted;
}

Status AdmissionLedger::force_submit(std::int64_t rows) {
  if (rows < 0 || rows > kMax - state_.running) {
    return refuse(Refusal::kBadCount, "force_submit", rows, kMax - state_.running);
  }
  state_.running += rows;
  return {};
}

Status AdmissionLedger::finish(const char* event, std::int64_t rows, std::int64_t& counter) {
  if (rows < 0 || rows > kMax - counter) {
    return refuse(Refusal::kBadCount, event, rows, kMax - counter);
  }
  if (rows > state_.running) {
    return refuse(Refusal::kUnderflow, event, rows, state_.running);
  }
  state_.running -= rows;
  counter += rows;
  return {};
}

Status AdmissionLedger::accept(std::int64_t rows) {
  return finish("accept", rows, state_.accepted);
}
Status AdmissionLedger::reject(std::int64_t rows) {
  return finish("reject", rows, state_.rejected);
}
Status AdmissionLedger::abort(std::int64_t rows) {
  return finish("abort", rows, state_.aborted);
}

Status AdmissionLedger::forfeit(std::int64_t rows) {
  if (rows < 0) {
    return refuse(Refusal::kBadCount, "forfeit", rows, untrained());
  }
  if (rows > untrained()) {
    return refuse(Refusal::kUnderflow, "forfeit", rows, untrained());
  }
  state_.accepted -= rows;
  return {};
}

Status AdmissionLedger::apply(const SlotChanges& changes) {
  const AdmissionState before = state_;
  // Accepting comes first: a group may finish its last response and be filtered in the same step.
  Status status = accept(changes.accepted);
  if (status.ok()) {
    status = abort(changes.aborted);
  }
  if (status.ok()) {
    status = reject(changes.rejected);
  }
  if (status.ok()) {
    status = forfeit(changes.forfeited);
  }
  if (!status.ok()) {
    state_ = before;
  }
  return status;
}

Status AdmissionLedger::set_version(std::int64_t version) {
  if (version < state_.version) {
    ++refused_[static_cast<std::size_t>(Refusal::kVersionRegress)];
    return {Errc::kStaleVersion, "version_regress: admission: version " + std::to_string(version) +
                                     " after " + std::to_string(state_.version)};
  }
  state_.version = version;
  return {};
}

Status AdmissionLedger::restart(std::int64_t version, std::int64_t unconsumed) {
  const Wide accepted = Wide{version} * options_.batch + unconsumed;
  if (version < 0 || unconsumed < 0 || accepted > Wide{kMax}) {
    return refuse(Refusal::kBadCount, "restart", version < 0 ? version : unconsumed, kMax);
  }
  state_ = {.version = version, .accepted = static_cast<std::int64_t>(accepted)};
  return {};
}

void AdmissionLedger::resize(std::int64_t max_concurrent) noexcept {
  options_.max_concurrent = std::max<std::int64_t>(1, max_concurrent);
}

}  // namespace tidemill::storage
