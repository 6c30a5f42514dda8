// SPDX-License-Identifier: Apache-2.0
// How a worker gets rows and keeps them: leases up to a number in flight, renewed while it works.
//
// `Self` points to an actor with `atom::wake` and `atom::renew` among its messages, whose state has
// `deps.stream`, `deps.name`, `deps.lease_wait`, `deps.max_in_flight`, `held` (row -> lease),
// `leasing`, `ended` and `lease_time`.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/stream/handles.hpp"

namespace tidemill::actors {

/// How much longer than its own deadline a worker waits for an answer of the stream.
inline constexpr Duration kAnswerMargin = std::chrono::seconds(30);

/// Wakes a worker with `atom::wake` soon: the stream did not answer, or refused.
template <class Self>
void try_again_later(Self self) {
  self->delayed_send(self, std::chrono::milliseconds(100), atom::wake_v);
}

/// Asks for as many rows as the worker may still hold, one request at a time, until the stream says
/// that no more will come. `take` gets the rows of an answer; it puts them into `held`.
template <class Self, class Take>
void lease_more_rows(Self self, storage::TaskId task, Take take) {
  auto& state = self->state;
  const auto held = static_cast<std::uint32_t>(state.held.size());
  if (state.leasing || state.ended || held >= state.deps.max_in_flight) {
    return;
  }
  state.leasing = true;
  LeaseRequest request;
  request.task = task;
  request.consumer = state.deps.name;
  request.max_units = state.deps.max_in_flight - held;
  request.wait = state.deps.lease_wait;
  const auto asked = self->request(state.deps.stream, state.deps.lease_wait + kAnswerMargin,
                                   atom::lease_v, std::move(request));
  asked.then(
      [self, take, id = asked.id()](const LeaseReply& reply) {
        end_deadline(self, id);
        self->state.leasing = false;
        self->state.ended = reply.ended;
        if (!reply.rows.empty()) {
          self->state.lease_time = reply.lease_time;
        }
        take(reply.rows);
      },
      [self](const caf::error&) {
        self->state.leasing = false;
        try_again_later(self);
      });
}

/// Extends the leases of all rows a worker holds, and wakes it with `atom::renew` when a third of
/// their time is over. Rows that are no longer its own leave `held`, and `on_lost` is told each. A
/// failed request is left to the next round.
template <class Self, class OnLost>
void renew_held_leases(Self self, storage::TaskId task, OnLost on_lost) {
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
  self->request(state.deps.stream, kAnswerMargin, atom::renew_v, std::move(rows))
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
