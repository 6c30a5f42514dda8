// SPDX-License-Identifier: Apache-2.0
// Requests that an actor cannot reply to yet, each with a deadline.
#pragma once

#include <iterator>
#include <list>
#include <optional>
#include <set>
#include <utility>

#include <caf/typed_response_promise.hpp>

#include "actors/errors.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// Holds requests of type `Request`, in order of arrival, until the owner can reply with a `Reply`.
///
/// The owner calls `settle` after every change that may allow a reply, and when a deadline passes.
/// Each requester has at most one request pending, so the number of requesters bounds the list.
template <class Request, class Reply>
class PendingRequests {
public:
  using Promise = caf::typed_response_promise<Reply>;

  /// Adds a request. A deadline of `TimePoint::max()` means none: only the requester's own timeout
  /// limits the wait.
  void add(Request request, Promise promise, TimePoint deadline) {
    pending_.push_back({std::move(request), std::move(promise), deadlines_.insert(deadline)});
  }

  [[nodiscard]] bool empty() const noexcept { return pending_.empty(); }

  /// Returns the earliest deadline, or nothing if no request has one.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const {
    if (deadlines_.empty() || *deadlines_.begin() == TimePoint::max()) {
      return std::nullopt;
    }
    return *deadlines_.begin();
  }

  /// Drops, without replying, every request for which `of_requester(request)` returns true. Call it
  /// when a requester has terminated.
  template <class Predicate>
  void forget(Predicate of_requester) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      it = of_requester(it->request) ? erase(it) : std::next(it);
    }
  }

  /// Calls `try_reply(request, last_chance)` for each pending request, in order. `try_reply`
  /// returns a `std::optional<Result<Reply>>`. A reply or a failure is delivered, and the request
  /// is removed. If it returns `std::nullopt`, the request stays pending. If `last_chance` is true,
  /// the deadline has passed, and `try_reply` must return a reply or a failure.
  template <class TryReply>
  void settle(TimePoint now, TryReply try_reply) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      it = settle_one(it, now, try_reply);
    }
  }

  /// Does the same, but only up to the first request that stays pending.
  template <class TryReply>
  void settle_in_order(TimePoint now, TryReply try_reply) {
    while (!pending_.empty()) {
      const auto next = settle_one(pending_.begin(), now, try_reply);
      if (next != pending_.begin()) {
        return;
      }
    }
  }

  /// Does the same as `settle` for the newest request only. Requires that a request is pending.
  template <class TryReply>
  void settle_newest(TimePoint now, TryReply try_reply) {
    settle_one(std::prev(pending_.end()), now, try_reply);
  }

private:
  struct Entry {
    Request request;
    Promise promise;
    std::multiset<TimePoint>::iterator deadline;
  };

  template <class TryReply>
  typename std::list<Entry>::iterator settle_one(typename std::list<Entry>::iterator entry,
                                                 TimePoint now, TryReply& try_reply) {
    const bool last_chance = *entry->deadline <= now;
    auto reply = try_reply(entry->request, last_chance);
    if (!reply.has_value()) {
      return std::next(entry);
    }
    if (reply->ok()) {
      entry->promise.deliver(std::move(*reply).value());
    } else {
      entry->promise.deliver(to_caf_error(reply->status()));
    }
    return erase(entry);
  }

  typename std::list<Entry>::iterator erase(typename std::list<Entry>::iterator entry) {
    deadlines_.erase(entry->deadline);
    return pending_.erase(entry);
  }

  std::list<Entry> pending_;  // in order of arrival
  std::multiset<TimePoint> deadlines_;
};

}  // namespace tidemill::actors
