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

bool HeldAmount::resize(std::size_t size) {
  if (limit_ == nullptr) {
    return size == 0;
  }
  limit_->give_back(tenant_, size_);
  const bool fits = size <= size_ || limit_->fits(tenant_, size);
  size_ = fits ? size : size_;
  limit_->take(tenant_, size_);
  return fits;
}

void HeldAmount::give_back() {
  if (limit_ != nullptr) {
    limit_->give_back(tenant_, std::exchange(size_, 0));
  }
}

}  // namespace tidemill::actors
