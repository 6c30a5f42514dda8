// SPDX-License-Identifier: Apache-2.0
// The futures of Tinker's API: results that clients fetch by the id of their request.
//
//   pending    `add` creates the future. Exchanges that poll it wait, each for at most `poll_time`.
//   ready      `complete` stores the result and responds to the waiting exchanges.
//   gone       The result was dropped: `unread_lifetime` after it became ready, `read_lifetime`
//              after its first read, to make room for newer results, or at the end of its session.
//
// If a tenant has more than `max_results`, its oldest are dropped. If the results of all tenants
// exceed `max_bytes`, the tenant whose results take the most bytes loses its oldest ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "actors/gateway/http/http_message.hpp"
#include "base/clock.hpp"

namespace tidemill::actors::tinker {

/// The category of a failed request (Tinker's `RequestErrorCategory`).
enum class FailureCategory : std::uint8_t { kUser, kServer };

/// What a future is ready with.
struct FutureResult {
  std::string body;
  bool is_protobuf = false;  // otherwise JSON
  bool failed = false;
};

/// Returns the result of a request that has failed.
[[nodiscard]] FutureResult failed_future(const std::string& message, FailureCategory category);

/// How long results are kept, how many, and how many bytes of them.
struct FutureLimits {
  Duration poll_time = std::chrono::seconds(30);  // below the 45 s that clients wait
  Duration unread_lifetime = std::chrono::hours(1);
  Duration read_lifetime = std::chrono::minutes(1);
  /// Of all results, with `kResultOverheadBytes` for each. The newest is kept even if it is larger.
  std::size_t max_bytes = std::size_t{256} << 20U;
  std::size_t max_results = 100'000;  // of one tenant
};

/// What a result takes besides its body. Units: bytes.
inline constexpr std::size_t kResultOverheadBytes = 1024;

/// Holds futures and the exchanges that wait for them.
///
/// Threads: one call at a time. The member functions call `respond`, which must not call the table.
class FutureTable {
public:
  using Respond = std::function<void(ExchangeId, HttpResponse)>;

  FutureTable(const FutureLimits& limits, Respond respond)
      : limits_(limits), respond_(std::move(respond)) {}

  /// Adds a pending future of `tenant`. Its id must be new, and begin with that of its session and
  /// ":". `digest` is that of its request.
  void add(const std::string& id, const std::string& tenant, const std::string& digest);
  [[nodiscard]] bool contains(const std::string& id) const { return futures_.contains(id); }
  /// Returns whether the future exists and belongs to a request with another digest.
  [[nodiscard]] bool has_other_digest(const std::string& id, const std::string& digest) const;
  [[nodiscard]] bool is_pending(const std::string& id) const;

  /// Makes a future ready. Ignores ids that are gone or ready.
  void complete(const std::string& id, FutureResult result, TimePoint now);

  /// Responds to `exchange` with the result of a future. If the future is pending, the exchange
  /// waits; `end_waits` responds with 408 and `try_again` after `poll_time`. If the future is gone
  /// or was never added, responds with 410.
  void poll(const std::string& id, ExchangeId exchange, TimePoint now);

  /// Forgets an exchange whose client has closed its connection.
  void forget(ExchangeId exchange);
  /// Drops the futures of a session. Exchanges that wait for them get 410.
  void drop_session(const std::string& session);
  /// Responds with 408 to the exchanges whose wait ends at or before `time`.
  void end_waits(TimePoint time);
  /// Drops expired results.
  void drop_expired(TimePoint now);

  /// Returns the bytes of all results.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return futures_.size(); }

private:
  // What becomes ready or expires is put into lists, so that the cost of a change does not grow
  // with the number of futures.
  struct Future {
    std::string tenant;
    std::string digest;
    bool ready = false;
    FutureResult result;
    TimePoint drop_at{};
    std::list<std::string>::iterator position;  // in the list of its tenant, once it is ready
    std::set<ExchangeId> waiting;
  };
  struct Wait {
    std::string id;
    TimePoint until{};
  };
  struct Results {
    std::list<std::string> ids;  // in the order in which they became ready
    std::size_t bytes = 0;
  };
  using Futures = std::map<std::string, Future>;

  void set_drop_time(const std::string& id, Future& future, TimePoint drop_at);
  void respond_ready(const std::string& id, Future& future, ExchangeId exchange, TimePoint now);
  Futures::iterator drop(Futures::iterator found);
  void drop_oldest(const Results& results);
  void make_room(const std::string& newest);

  FutureLimits limits_;
  Respond respond_;
  Futures futures_;
  std::map<std::string, Results> ready_;                      // by tenant; none is empty
  std::set<std::pair<TimePoint, std::string>> by_drop_time_;  // ready futures, by `drop_at`
  std::map<ExchangeId, Wait> exchanges_;
  std::size_t bytes_ = 0;
};

}  // namespace tidemill::actors::tinker
