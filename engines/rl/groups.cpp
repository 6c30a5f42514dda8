// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/groups.hpp"

#include <unordered_map>

namespace tidemill::engines {

GroupIndex::GroupIndex(std::span<const GroupId> groups) : members_(groups.size()) {
  std::unordered_map<GroupId, std::size_t> numbers;
  std::vector<std::size_t> number_of(groups.size());
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto [location, is_new] = numbers.try_emplace(groups[i], ids_.size());
    if (is_new) {
      ids_.push_back(groups[i]);
      sizes.push_back(0);
    }
    number_of[i] = location->second;
    ++sizes[location->second];
  }
  starts_.assign(ids_.size() + 1, 0);
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    starts_[g + 1] = starts_[g] + sizes[g];
  }
  std::vector<std::size_t> next(starts_.begin(), starts_.end() - 1);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    members_[next[number_of[i]]++] = i;
  }
}

}  // namespace tidemill::engines
