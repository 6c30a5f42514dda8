// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/fair_limit.hpp"

#include "base/check.hpp"

namespace tidemill::actors {

void FairLimit::take(const std::string& tenant, std::size_t amount) {
  if (amount == 0) {
    return;
  }
  held_[tenant] += amount;
  total_ += amount;
  TIDEMILL_CHECK(total_ <= limit_) << total_ << " of " << limit_;
}

void FairLimit::give_back(const std::string& tenant, std::size_t amount) {
  if (amount == 0) {
    return;
  }
  const auto found = held_.find(tenant);
  TIDEMILL_CHECK(found != held_.end() && found->second >= amount) << amount;
  found->second -= amount;
  total_ -= amount;
  if (found->second == 0) {
    held_.erase(found);
  }
}

}  // namespace tidemill::actors
