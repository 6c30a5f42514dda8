// SPDX-License-Identifier: Apache-2.0
// The verbs of the actor protocols. A verb has at most 10 characters of [a-z0-9_]. Arguments are
// structs.
#pragma once

#include <caf/atom.hpp>

namespace tidemill::atom {

#define TIDEMILL_ATOM(name)                          \
  using name = caf::atom_constant<caf::atom(#name)>; \
  inline constexpr name name##_v {}

TIDEMILL_ATOM(ack);
TIDEMILL_ATOM(adapters);
TIDEMILL_ATOM(add);
TIDEMILL_ATOM(admit);
TIDEMILL_ATOM(cancel);
TIDEMILL_ATOM(capture);
TIDEMILL_ATOM(checkpoint);
TIDEMILL_ATOM(close);
TIDEMILL_ATOM(closed);
TIDEMILL_ATOM(create);
TIDEMILL_ATOM(deliver);
TIDEMILL_ATOM(drain);
TIDEMILL_ATOM(events);
TIDEMILL_ATOM(finish);
TIDEMILL_ATOM(generate);
TIDEMILL_ATOM(get);
TIDEMILL_ATOM(join);
TIDEMILL_ATOM(lease);
TIDEMILL_ATOM(leave);
TIDEMILL_ATOM(list);
TIDEMILL_ATOM(load);
TIDEMILL_ATOM(nack);
TIDEMILL_ATOM(open);
TIDEMILL_ATOM(pass);
TIDEMILL_ATOM(pause);
TIDEMILL_ATOM(publish);
TIDEMILL_ATOM(put);
TIDEMILL_ATOM(quarantine);
TIDEMILL_ATOM(record);
TIDEMILL_ATOM(release);
TIDEMILL_ATOM(remove);
TIDEMILL_ATOM(renew);
TIDEMILL_ATOM(request);
TIDEMILL_ATOM(restore);
TIDEMILL_ATOM(resume);
TIDEMILL_ATOM(retire);
TIDEMILL_ATOM(save);
TIDEMILL_ATOM(score);
TIDEMILL_ATOM(sent);
TIDEMILL_ATOM(start);
TIDEMILL_ATOM(status);
TIDEMILL_ATOM(step);
TIDEMILL_ATOM(stop);
TIDEMILL_ATOM(stream);
TIDEMILL_ATOM(tokens);
TIDEMILL_ATOM(train);
TIDEMILL_ATOM(waits);
TIDEMILL_ATOM(wake);
TIDEMILL_ATOM(worked);

#undef TIDEMILL_ATOM

}  // namespace tidemill::atom
