// SPDX-License-Identifier: Apache-2.0
// The ways of all message types into bytes, out of them and into text, compiled once.
#include <caf/actor_system_config.hpp>

#include "actors/type_ids.hpp"

#define TIDEMILL_DEFINE_INSPECT(ns, type) TIDEMILL_INSPECT(, ns, type)
TIDEMILL_MESSAGE_TYPES(TIDEMILL_DEFINE_INSPECT)
#undef TIDEMILL_DEFINE_INSPECT

namespace tidemill::actors {

void add_message_types(caf::actor_system_config& config) {
  config.add_message_types<caf::id_block::tidemill_types>();
}

}  // namespace tidemill::actors
