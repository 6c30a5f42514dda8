// SPDX-License-Identifier: Apache-2.0
// An index of the samples of each group, for group ids in any order.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/ids.hpp"

namespace tidemill::engines {

/// The members of every group of a batch. Groups are numbered by first appearance.
class GroupIndex {
public:
  /// Indexes samples by group; `groups[i]` is the group of sample i.
  explicit GroupIndex(std::span<const GroupId> groups);

  /// Returns the number of groups.
  [[nodiscard]] std::size_t size() const noexcept { return ids_.size(); }
  [[nodiscard]] GroupId id(std::size_t group) const { return ids_[group]; }
  /// Returns the indices of the group's samples in batch order.
  [[nodiscard]] std::span<const std::size_t> members(std::size_t group) const {
    return std::span(members_).subspan(starts_[group], starts_[group + 1] - starts_[group]);
  }

private:
  std::vector<GroupId> ids_;
  std::vector<std::size_t> starts_;   // (size() + 1)
  std::vector<std::size_t> members_;  // sample indices, group by group
};

}  // namespace tidemill::engines
