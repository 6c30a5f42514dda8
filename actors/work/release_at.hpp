// SPDX-License-Identifier: Apache-2.0
// Frees large objects at a port.
#pragma once

#include <memory>
#include <utility>

#include <caf/actor_control_block.hpp>

#include "actors/work/work_port.hpp"

namespace tidemill::actors {

/// Frees `object` at `port`. If the object holds the last handle to the weights of a model, freeing
/// it takes too long for a message handler. An object whose memory is also held elsewhere is only
/// let go.
template <class Object>
void release_at(WorkPort& port, Object object) {
  port.run(
      [held = std::make_shared<Object>(std::move(object))]() mutable {
        held.reset();
        return Duration{0};
      },
      nullptr, {});
}

}  // namespace tidemill::actors
