// SPDX-License-Identifier: Apache-2.0
#include "storage/stream/live_groups.hpp"

#include <algorithm>
#include <iterator>

namespace tidemill::storage {

void LiveGroups::admit(GroupId group, std::uint32_t rows) {
  const bool added = groups_.insert_or_assign(group, Group{rows}).second;
  if (added && below_.has_value() && group < below_->group) {
    ++below_->count;
  }
  next_group_ = std::max(next_group_, GroupId{group.value + 1});
  ++revision_;
}

void LiveGroups::retire(const RetiredRow& row) {
  const auto it = groups_.find(row.group);
  if (it == groups_.end()) {
    return;
  }
  Group& group = it->second;
  group.trained = group.trained || row.outcome == RowOutcome::kTrained;
  group.filtered = group.filtered || row.outcome == RowOutcome::kFiltered;
  if (row.outcome == RowOutcome::kFailed) {
    last_lost_reason_ = row.reason;
  }
  if (--group.rows > 0) {
    return;
  }
  if (!group.trained) {
    ++(group.filtered ? num_filtered_ : num_lost_);
    if (last_lost_reason_.empty() && !group.filtered) {
      last_lost_reason_ = row.reason;
    }
  }
  if (below_.has_value() && it->first < below_->group) {
    --below_->count;
  }
  groups_.erase(it);
  ++revision_;
}

void LiveGroups::end_admission() {
  ended_ = true;
  ++revision_;
}

void LiveGroups::restore(std::span<const RowSnapshot> rows, GroupId next_group) {
  groups_.clear();
  below_.reset();
  for (const RowSnapshot& row : rows) {
    ++groups_[row.row.group].rows;
  }
  next_group_ = next_group;
  ++revision_;
}

std::optional<LeaseSize> LiveGroups::lease_size(const UnitRequest& request) const {
  if (!request.before_group.has_value()) {
    return request.size;
  }
  if (next_group_ < *request.before_group) {
    return std::nullopt;
  }
  if (!below_.has_value() || below_->group != *request.before_group) {
    const auto end = groups_.lower_bound(*request.before_group);
    below_ = {*request.before_group,
              static_cast<std::uint32_t>(std::distance(groups_.begin(), end))};
  }
  return LeaseSize{below_->count, below_->count};
}

bool LiveGroups::has_ended(const UnitRequest& request, DeliveryUnit unit) const {
  if (!ended_) {
    return false;
  }
  if (request.before_group.has_value()) {
    return next_group_ < *request.before_group;
  }
  return unit == DeliveryUnit::kGroup ? groups_.size() < request.size.min_units : groups_.empty();
}

std::optional<std::string> LiveGroups::waiting_for(const UnitRequest& request) const {
  if (!request.before_group.has_value() || next_group_ >= *request.before_group) {
    return std::nullopt;
  }
  return "group " + std::to_string(next_group_.value) + " to be admitted";
}

}  // namespace tidemill::storage
