// SPDX-License-Identifier: Apache-2.0
// How a worker keeps the leases of the rows it holds.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include <caf/all.hpp>

#include "actors/stream/handles.hpp"

namespace tidemill::actors {

/// Extends the leases of all rows a worker holds, and wakes it with `atom::renew` when a third of
/// their time is over. Rows that are no longer its own leave `held`, and `on_lost` is told each. A
/// failed request is left to the next round.
///
/// `Self` points to an actor whose state has `deps.stream`, `deps.name`, `held` (row -> lease) and
/// `lease_time`, and which handles `atom::renew`.
template <class Self, class OnLost>
void renew_held_leases(Self self, storage::TaskId task, Duration deadline, OnLost on_lost) {
  auto& state = self->state;
  const Duration third = state.lease_time / 3;
  self->delayed_send(self, std::max<Duration>(third, std::chrono::milliseconds(500)),
                     atom::renew_v);
  if (state.held.empty()) {
    return;
  }
  Return rows{task, state.deps.name, {}, {}};
  for (const auto& [id, lease] : state.held) {
    rows.rows.push_back(lease);
  }
  self->request(state.deps.stream, deadline, atom::renew_v, std::move(rows))
      .then(
          [self, on_lost](const storage::Settlement& reply) {
            for (const storage::RefusedRow& row : reply.refused) {
              if (self->state.held.erase(row.row) != 0) {
                on_lost(row.row);
              }
            }
          },
          [](const caf::error&) {});
}

}  // namespace tidemill::actors
