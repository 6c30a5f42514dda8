// SPDX-License-Identifier: Apache-2.0
#include "workflows/actor_end.hpp"

#include "actors/errors.hpp"

namespace tidemill::workflows {

void ActorEnd::Shared::end(const caf::error& why) {
  {
    const std::lock_guard lock(mutex);
    reason = actors::from_caf_error(why);
  }
  changed.notify_all();
}

bool ActorEnd::wait_for(Duration limit) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, limit, [this] { return shared_->reason.has_value(); });
}

Status ActorEnd::reason() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->reason.value_or(Status());
}

void ActorEnds::Shared::add(int more) {
  {
    const std::lock_guard lock(mutex);
    running += more;
  }
  changed.notify_all();
}

bool ActorEnds::wait_for(Duration limit) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, limit, [this] { return shared_->running == 0; });
}

}  // namespace tidemill::workflows
