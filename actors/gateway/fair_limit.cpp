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

bool GrowingAmount::grow(std::size_t more) {
  if (more == 0 || limit_ == nullptr) {
    return more == 0;
  }
  limit_->give_back(tenant_, size_);
  const bool fits = limit_->fits(tenant_, size_ + more);
  size_ += fits ? more : 0;
  limit_->take(tenant_, size_);
  return fits;
}

void GrowingAmount::give_back() {
  if (limit_ != nullptr) {
    limit_->give_back(tenant_, std::exchange(size_, 0));
  }
}

}  // namespace tidemill::actors
