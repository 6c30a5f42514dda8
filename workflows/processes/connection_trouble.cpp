// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/connection_trouble.hpp"

namespace tidemill::workflows {

void ConnectionTrouble::note(const Status& why) {
  const TimePoint now = clock_.now();
  {
    const std::lock_guard lock(mutex_);
    if (why_.ok() || now - last_ > kOver) {
      since_ = now;
    }
    why_ = why;
    last_ = now;
    if (told_.has_value() && now - *told_ < kPause) {
      return;
    }
    told_ = now;
  }
  if (warn_) {
    warn_(fact_ + ": " + why.message() + "; trying again");
  }
}

Status ConnectionTrouble::lasting(Duration at_least) const {
  const TimePoint now = clock_.now();
  const std::lock_guard lock(mutex_);
  return why_.ok() || now - last_ > kOver || last_ - since_ < at_least ? Status() : why_;
}

}  // namespace tidemill::workflows
