// SPDX-License-Identifier: Apache-2.0
// Lease requests of one task that the stream cannot reply to yet.
#pragma once

#include <compare>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <caf/typed_response_promise.hpp>

#include "actors/errors.hpp"
#include "actors/stream/messages.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// A lease request and its sender.
struct PendingLease {
  LeaseRequest request;
  std::uint64_t instance = 0;
};

/// Holds lease requests of one task until the owner can reply to them.
///
/// Requests that ask for the same stand in one line. If the first of a line has no reply, neither
/// have the others, so they are not tried. A change therefore costs one attempt for each reply, and
/// one for each different demand, however many requests are pending. A request that gets no reply
/// causes no message.
class PendingLeases {
public:
  using Promise = caf::typed_response_promise<LeaseReply>;

  /// Adds a request.
  void add(PendingLease lease, Promise promise, TimePoint deadline) {
    const std::uint64_t number = next_number_++;
    lines_[demand_of(lease.request)].insert(number);
    deadlines_.emplace(deadline, number);
    consumers_.emplace(lease.request.consumer, number);
    entries_.emplace(number, Entry{std::move(lease), std::move(promise), deadline});
  }

  /// Returns the earliest deadline, or nothing if no request is pending.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const {
    return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.begin()->first);
  }

  /// Drops the requests of a consumer that is gone, without replying.
  void forget(const std::string& consumer) {
    for (auto it = consumers_.lower_bound({consumer, 0});
         it != consumers_.end() && it->first == consumer;) {
      erase((it++)->second);
    }
  }

  /// Calls `try_reply(lease, last_chance)` for the pending requests, in order of arrival, except
  /// those behind one of their line that got no reply. `try_reply` returns a
  /// `std::optional<Result<LeaseReply>>`, as for `PendingRequests::settle`. A request whose
  /// deadline has passed is always tried, with `last_chance`.
  template <class TryReply>
  void settle(TimePoint now, TryReply try_reply) {
    std::set<std::uint64_t> next;  // the first of each line that may have a reply
    for (const auto& [demand, line] : lines_) {
      next.insert(*line.begin());
    }
    while (!next.empty()) {
      const std::uint64_t number = next.extract(next.begin()).value();
      const Demand demand = demand_of(entries_.at(number).lease.request);
      if (settle_one(number, now, try_reply)) {
        if (const auto line = lines_.find(demand); line != lines_.end()) {
          next.insert(*line->second.begin());
        }
      }
    }
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      settle_one(deadlines_.begin()->second, now, try_reply);
    }
  }

  /// Does the same for the newest request only. Requires that a request is pending.
  template <class TryReply>
  void settle_newest(TimePoint now, TryReply try_reply) {
    settle_one(std::prev(entries_.end())->first, now, try_reply);
  }

private:
  struct Entry {
    PendingLease lease;
    Promise promise;
    TimePoint deadline;
  };
  // What decides whether a request has a reply.
  struct Demand {
    std::uint64_t before_group = 0;
    std::uint32_t min_units = 0;
    std::uint32_t max_units = 0;
    friend auto operator<=>(const Demand&, const Demand&) = default;
  };

  [[nodiscard]] static Demand demand_of(const LeaseRequest& request) {
    return {request.before_group, request.min_units, request.max_units};
  }

  // Returns whether there was a reply.
  template <class TryReply>
  bool settle_one(std::uint64_t number, TimePoint now, TryReply& try_reply) {
    Entry& entry = entries_.at(number);
    auto reply = try_reply(entry.lease, entry.deadline <= now);
    if (!reply.has_value()) {
      return false;
    }
    if (reply->ok()) {
      entry.promise.deliver(std::move(*reply).value());
    } else {
      entry.promise.deliver(to_caf_error(reply->status()));
    }
    erase(number);
    return true;
  }

  void erase(std::uint64_t number) {
    const auto entry = entries_.find(number);
    const LeaseRequest& request = entry->second.lease.request;
    const auto line = lines_.find(demand_of(request));
    line->second.erase(number);
    if (line->second.empty()) {
      lines_.erase(line);
    }
    deadlines_.erase({entry->second.deadline, number});
    consumers_.erase({request.consumer, number});
    entries_.erase(entry);
  }

  // Requests have numbers in order of arrival.
  std::uint64_t next_number_ = 0;
  std::map<std::uint64_t, Entry> entries_;
  std::map<Demand, std::set<std::uint64_t>> lines_;
  std::set<std::pair<TimePoint, std::uint64_t>> deadlines_;
  std::set<std::pair<std::string, std::uint64_t>> consumers_;
};

}  // namespace tidemill::actors
