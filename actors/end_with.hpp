// SPDX-License-Identifier: Apache-2.0
// Ends an actor together with another one.
#pragma once

#include <caf/system_messages.hpp>

namespace tidemill::actors {

/// Makes `self` end when `other` ends, with the same reason. Unlike a link, it leaves `other`
/// running when `self` ends. Replaces the down handler of `self`.
template <class Self, class Handle>
void end_with(Self self, const Handle& other) {
  self->monitor(other);
  self->set_down_handler([self](const caf::down_msg& down) { self->quit(down.reason); });
}

}  // namespace tidemill::actors
