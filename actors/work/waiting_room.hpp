// SPDX-License-Identifier: Apache-2.0
// Requests that cannot be answered yet, each with a deadline.
#pragma once

#include <list>
#include <utility>

#include <caf/typed_response_promise.hpp>

#include "actors/errors.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// Holds requests of type `Request` that will be answered with an `Answer`, in order of arrival.
///
/// Its owner calls `settle` whenever something has changed and whenever a deadline has passed. The
/// number of waiting requests is bounded by the number of requesters, who ask one at a time.
template <class Request, class Answer>
class WaitingRoom {
public:
  using Promise = caf::typed_response_promise<Answer>;

  void enter(Request request, Promise promise, TimePoint deadline) {
    waiting_.push_back({std::move(request), std::move(promise), deadline});
  }

  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }

  /// Drops the requests of a requester that has ended; nobody waits for their answers.
  template <class Predicate>
  void forget(Predicate of_requester) {
    waiting_.remove_if([&](const Entry& entry) { return of_requester(entry.request); });
  }

  /// Goes through the waiting requests in order. `try_answer(request, last_chance)` returns a
  /// `std::optional<Result<Answer>>`: an answer, or a failure, ends the wait. `last_chance` says
  /// that the deadline has passed: then it must return one.
  template <class TryAnswer>
  void settle(TimePoint now, TryAnswer try_answer) {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const bool last_chance = it->deadline <= now;
      auto answer = try_answer(it->request, last_chance);
      if (answer.has_value()) {
        if (answer->ok()) {
          it->promise.deliver(std::move(*answer).value());
        } else {
          it->promise.deliver(to_caf_error(answer->status()));
        }
        it = waiting_.erase(it);
      } else {
        ++it;
      }
    }
  }

private:
  struct Entry {
    Request request;
    Promise promise;
    TimePoint deadline;
  };
  std::list<Entry> waiting_;
};

}  // namespace tidemill::actors
