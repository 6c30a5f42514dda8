// SPDX-License-Identifier: Apache-2.0
// Tracks which groups of a stream have not left yet. The stream needs this to reply to requests for
// whole batches of groups.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/ids.hpp"
#include "storage/records/verdict.hpp"
#include "storage/stream/index_snapshot.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::storage {

/// How many units a request leases. A unit is a row, or a group if the task takes groups. If fewer
/// than `min_units` are deliverable, none are leased.
struct LeaseSize {
  std::uint32_t max_units = 1;
  std::uint32_t min_units = 1;
  friend bool operator==(const LeaseSize&, const LeaseSize&) = default;
};

/// A request for units. If `before_group` is set, the request is for all groups with smaller ids
/// that have not left, and `size` is ignored.
struct UnitRequest {
  LeaseSize size = {};
  std::optional<GroupId> before_group = std::nullopt;
};

/// Tracks the groups of a stream from their admission until their last row leaves, and counts those
/// that leave untrained. Group ids increase in admission order, and a group is admitted with all
/// its rows at once.
///
/// Cost: O(log n) per call, except that the first request with another `before_group` counts the
/// groups below it.
/// Threads: one call at a time.
class LiveGroups {
public:
  /// Adds a group of `rows` rows.
  void admit(GroupId group, std::uint32_t rows);
  /// Removes `row`, which has left the stream, from its group. Ignores rows of unknown groups.
  void retire(const RetiredRow& row);
  /// Records that no further group will be admitted.
  void end_admission();
  /// Replaces all groups with those of a snapshot's rows. `next_group` is the id of the group that
  /// is admitted next. Keeps the counts of groups that have left.
  void restore(std::span<const RowSnapshot> rows, GroupId next_group);

  /// Returns how many units the request leases now. For a request with `before_group`, returns
  /// nothing until all groups below that one have been admitted. After that, the size may be 0.
  [[nodiscard]] std::optional<LeaseSize> lease_size(const UnitRequest& request) const;
  /// Returns whether a request from a task that takes `unit` can never be fulfilled. That is so if
  /// admission has ended before `before_group`, or, without one, if fewer than `min_units` groups
  /// are left (for rows: none).
  [[nodiscard]] bool has_ended(const UnitRequest& request, DeliveryUnit unit) const;
  /// Returns in words which group a request with `before_group` waits for. Returns nothing if all
  /// its groups have been admitted, and for any other request.
  [[nodiscard]] std::optional<std::string> waiting_for(const UnitRequest& request) const;

  [[nodiscard]] std::size_t size() const noexcept { return groups_.size(); }
  /// Returns whether all groups have left and no further one will be admitted.
  [[nodiscard]] bool is_over() const noexcept { return ended_ && groups_.empty(); }
  /// Returns the id of the group that is admitted next.
  [[nodiscard]] GroupId next_group() const noexcept { return next_group_; }
  /// Returns a number that grows whenever a group is admitted or leaves, when admission ends, and
  /// with each `restore`.
  [[nodiscard]] std::uint64_t revision() const noexcept { return revision_; }

  /// Returns how many groups have left with a filtered row and without a trained one.
  [[nodiscard]] std::uint64_t num_filtered() const noexcept { return num_filtered_; }
  /// Returns how many groups have left with neither.
  [[nodiscard]] std::uint64_t num_lost() const noexcept { return num_lost_; }
  /// Returns why the last failed row failed. If no row has failed, returns why the first lost group
  /// left, or "" if there is none.
  [[nodiscard]] const std::string& last_lost_reason() const noexcept { return last_lost_reason_; }

private:
  struct Group {
    std::uint32_t rows = 0;  // that have not left
    bool trained = false;    // at least one row was trained
    bool filtered = false;
  };

  // How many live groups are below a group: what the last request with `before_group` asked for.
  struct Below {
    GroupId group;
    std::uint32_t count = 0;
  };

  std::map<GroupId, Group> groups_;
  mutable std::optional<Below> below_;
  GroupId next_group_;
  bool ended_ = false;
  std::uint64_t revision_ = 0;
  std::uint64_t num_filtered_ = 0;
  std::uint64_t num_lost_ = 0;
  std::string last_lost_reason_;
};

}  // namespace tidemill::storage
