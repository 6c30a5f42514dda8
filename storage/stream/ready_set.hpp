// SPDX-License-Identifier: Apache-2.0
// The units that one task may lease, in admission order, with fresh and stale units apart.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// What one delivery consists of: a row or a group. Units are ordered by admission.
struct Unit {
  std::uint64_t position = 0;  // id of the row, or of the group's first row
  std::uint64_t id = 0;        // of the row or of the group
  friend auto operator<=>(const Unit&, const Unit&) = default;
};

/// The ready units of one task.
///
/// A unit is fresh if it has no version or if `oldest_step + max_staleness >= version`. A change of
/// the version moves only the units whose freshness changes.
/// Cost: O(log n) per call, and per unit moved.
class ReadySet {
public:
  explicit ReadySet(std::optional<std::uint64_t> max_staleness) : max_staleness_(max_staleness) {}

  /// Adds a unit, or changes its `oldest_step`.
  void put(Unit unit, std::uint64_t oldest_step);
  /// Removes a unit, if it is present.
  void erase(Unit unit);
  /// Sets the version that decides which units are fresh.
  void set_version(std::uint64_t version);

  /// Fresh units in admission order, each with its `oldest_step`.
  [[nodiscard]] const std::map<Unit, std::uint64_t>& fresh() const noexcept { return fresh_; }
  /// Stale units in admission order, each with its `oldest_step`.
  [[nodiscard]] const std::map<Unit, std::uint64_t>& stale() const noexcept { return stale_; }

private:
  [[nodiscard]] bool fresh_at(std::uint64_t oldest_step) const noexcept;

  std::optional<std::uint64_t> max_staleness_;
  std::uint64_t version_ = 0;
  std::map<Unit, std::uint64_t> fresh_;
  std::map<Unit, std::uint64_t> stale_;
  // Fresh units that can become stale, oldest version first. Used only with `max_staleness`.
  std::set<std::pair<std::uint64_t, Unit>> by_step_;
};

}  // namespace tidemill::storage
