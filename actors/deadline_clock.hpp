// SPDX-License-Identifier: Apache-2.0
// A clock of actor systems that sets and cancels each timeout in logarithmic time.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <caf/detail/thread_safe_actor_clock.hpp>
#include <caf/fwd.hpp>
#include <caf/group.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>

namespace tidemill::actors {

/// Sends actors their timeouts and delayed messages.
///
/// CAF 0.17's own clock scans all timeouts of an actor, on the thread of the clock, for each
/// cancellation. An actor with thousands of requests in flight then spends most of its time on
/// deadlines that never pass.
///
/// Threads: safe to call concurrently; `run` is called by one thread.
class DeadlineClock final : public caf::detail::thread_safe_actor_clock {
public:
  void set_ordinary_timeout(time_point time, caf::abstract_actor* self, caf::atom_value type,
                            std::uint64_t id) override;
  void set_multi_timeout(time_point time, caf::abstract_actor* self, caf::atom_value type,
                         std::uint64_t id) override;
  void set_request_timeout(time_point time, caf::abstract_actor* self,
                           caf::message_id request) override;
  void cancel_ordinary_timeout(caf::abstract_actor* self, caf::atom_value type) override;
  void cancel_request_timeout(caf::abstract_actor* self, caf::message_id request) override;
  void cancel_timeouts(caf::abstract_actor* self) override;
  void schedule_message(time_point time, caf::strong_actor_ptr receiver,
                        caf::mailbox_element_ptr content) override;
  void schedule_message(time_point time, caf::group target, caf::strong_actor_ptr sender,
                        caf::message content) override;
  void cancel_all() override;

  /// Sends what is due, until `stop`.
  void run();
  /// Ends `run` and forgets what was not sent.
  void stop();

  /// Returns how many timeouts and messages are neither sent nor cancelled.
  [[nodiscard]] std::size_t num_pending() const;

private:
  enum class Kind : std::uint8_t { kRequest, kOrdinary, kMulti, kMessage, kGroupMessage };
  struct Key {
    caf::abstract_actor* actor = nullptr;  // null for messages, which are not cancelled with it
    Kind kind = Kind::kRequest;
    std::uint64_t number = 0;  // of the request, the type of the timeout, or a number of its own
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // The members that its kind needs.
  struct Event {
    time_point time;
    caf::strong_actor_ptr actor;  // which gets it, or the sender to a group
    caf::message_id request = {};
    caf::atom_value type = {};
    std::uint64_t id = 0;
    caf::mailbox_element_ptr content = {};
    caf::group target = {};
    caf::message message = {};
  };
  using Events = std::map<Key, Event>;

  void add(Key key, Event added);
  void cancel(const Key& key);
  // Removes an event and returns it. Requires the mutex. The caller releases the mutex before it
  // destroys what it gets, because the last reference to an actor may be in it.
  Events::node_type take(Events::iterator it);
  static void send(Kind kind, Event& due);

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // another event is the first, or `run` must end
  Events events_;
  std::set<std::pair<time_point, Key>> by_time_;
  std::uint64_t last_number_ = 0;
  bool stopping_ = false;
};

/// Makes actor systems that are constructed from `config` use a `DeadlineClock`. They then have
/// CAF's work-sharing scheduler, with one queue of actors that can run, whatever
/// `scheduler.policy` says.
void use_deadline_clock(caf::actor_system_config& config);

}  // namespace tidemill::actors
