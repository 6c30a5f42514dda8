// SPDX-License-Identifier: Apache-2.0
// Leases rows for a worker, up to a number in flight, and renews the leases while it works.
//
// `Self` points to an actor that handles `atom::wake` and `atom::renew`. The actor's state has
// `deps.stream`, `deps.name`, `deps.lease_wait`, `deps.max_in_flight`, `held` (row -> lease),
// `leasing`, `ended`, `draining` and `lease_time`.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/stream/handles.hpp"

namespace tidemill::actors {

/// How long a worker waits for a reply of the stream, in addition to the wait that it asked for.
inline constexpr Duration kReplyMargin = std::chrono::seconds(30);

/// Sends the worker `atom::wake` after a short delay. For use when the stream did not reply, or
/// refused a request.
template <class Self>
void try_again_later(Self self) {
  self->delayed_send(self, std::chrono::milliseconds(100), atom::wake_v);
}

/// Gives rows back on purpose, because the worker drains: they are ready for other workers at once,
/// and no delivery has failed. `held` must not have them. If the message is lost, their leases
/// expire.
template <class Self>
void leave_rows(Self self, storage::TaskId task, const std::vector<storage::LeasedRow>& rows) {
  LeaseUpdate left{.task = task, .consumer = self->state.deps.name};
  left.release = storage::Release::kLeft;
  left.reason = self->state.deps.name + " is drained";
  for (const storage::LeasedRow& row : rows) {
    left.rows.push_back({row.lease});
  }
  if (!left.rows.empty()) {
    self->request(self->state.deps.stream, kReplyMargin, atom::nack_v, std::move(left))
        .then([](const storage::Settlement&) {}, [](const caf::error&) {});
  }
}

/// Asks for as many rows as the worker may still hold, with one request at a time, until the stream
/// replies that no more rows will come. Calls `take` with the rows of a reply; `take` must add them
/// to `held`. A draining worker asks for none, leaves those that it still gets, and ends once it
/// holds none.
template <class Self, class Take>
void lease_more_rows(Self self, storage::TaskId task, Take take) {
  auto& state = self->state;
  const auto held = static_cast<std::uint32_t>(state.held.size());
  if (state.draining) {
    if (held == 0 && !state.leasing) {
      self->quit();
    }
    return;
  }
  if (state.leasing || state.ended || held >= state.deps.max_in_flight) {
    return;
  }
  state.leasing = true;
  LeaseRequest request;
  request.task = task;
  request.consumer = state.deps.name;
  request.max_units = state.deps.max_in_flight - held;
  request.wait = state.deps.lease_wait;
  const auto handle = self->request(state.deps.stream, state.deps.lease_wait + kReplyMargin,
                                    atom::lease_v, std::move(request));
  handle.then(
      [self, task, take, id = handle.id()](const LeaseReply& reply) {
        end_deadline(self, id);
        self->state.leasing = false;
        self->state.ended = reply.ended;
        if (self->state.draining) {
          leave_rows(self, task, reply.rows);
          lease_more_rows(self, task, take);
          return;
        }
        if (!reply.rows.empty()) {
          self->state.lease_time = reply.lease_time;
        }
        take(reply.rows);
      },
      [self, id = handle.id()](const caf::error&) {
        end_deadline(self, id);
        self->state.leasing = false;
        try_again_later(self);
      });
}

/// Renews the leases of all rows that the worker holds, and sends the worker `atom::renew` after a
/// third of the lease time, but not before half a second. Removes the rows that the stream refuses
/// from `held`, calls `on_lost` with each, and sends the worker `atom::wake`, so that it requests
/// others. If the request fails, the next renewal makes up for it.
template <class Self, class OnLost>
void renew_held_leases(Self self, storage::TaskId task, OnLost on_lost) {
  auto& state = self->state;
  const Duration third = state.lease_time / 3;
  self->delayed_send(self, std::max<Duration>(third, std::chrono::milliseconds(500)),
                     atom::renew_v);
  if (state.held.empty()) {
    return;
  }
  LeaseUpdate rows{.task = task, .consumer = state.deps.name};
  for (const auto& [id, lease] : state.held) {
    rows.rows.push_back({lease});
  }
  self->request(state.deps.stream, kReplyMargin, atom::renew_v, std::move(rows))
      .then(
          [self, on_lost](const storage::Settlement& reply) {
            const std::size_t held_before = self->state.held.size();
            for (const storage::RefusedRow& refused : reply.refused) {
              // The row may have been leased again since the request: that lease is still good.
              const auto held = self->state.held.find(refused.lease.row);
              if (held != self->state.held.end() && held->second == refused.lease) {
                self->state.held.erase(held);
                on_lost(refused.lease.row);
              }
            }
            if (self->state.held.size() < held_before) {
              self->send(self, atom::wake_v);  // a worker that was full requests no rows
            }
          },
          [](const caf::error&) {});
}

}  // namespace tidemill::actors
