// SPDX-License-Identifier: Apache-2.0
// Instantiates, once for all message types, their conversion to bytes, from bytes and to text.
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
