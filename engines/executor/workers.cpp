// SPDX-License-Identifier: Apache-2.0
// A fork-join team. Each member waits on its own ticket and spins briefly before it sleeps. So the
// loops of a forward pass cost no system calls, and an idle engine costs no processor time.
//
// A member takes its part of a loop before it runs it. The caller takes the parts whose members
// have not begun by the time its own part is done. So a loop does not wait for a thread that has no
// processor, which would take milliseconds on a machine with other busy threads.
#include "engines/executor/workers.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// About 20 microseconds on current processors: longer than the gaps between the loops of one step.
constexpr int kSpins = 600;

void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `word` differs from `old`: spins first, then sleeps until a notification.
void wait_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t old) noexcept {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) {
      return;
    }
    pause_briefly();
  }
  while (word.load(std::memory_order_acquire) == old) {
    word.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

struct Workers::Team {
  // One cache line per member, so that waking one does not disturb the others.
  struct alignas(64) Member {
    std::atomic<std::uint32_t> ticket{0};  // counts the loops that have a part for the member
    std::atomic<std::uint32_t> taken{0};   // counts those of them whose part has begun
    std::int64_t begin = 0;                // of the part; constant while it may be taken
    std::int64_t end = 0;
  };

  explicit Team(int count) : members(static_cast<std::size_t>(count)) {}

  // The loop of a helper thread: runs its part of every parallel loop until `stopping`.
  void run_helper(Member& member) {
    std::uint32_t seen = 0;
    while (true) {
      wait_while_equal(member.ticket, seen);
      seen = member.ticket.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) {
        return;
      }
      if (take(member, seen) && run_part(member)) {
        finished.fetch_add(1, std::memory_order_release);
        finished.notify_one();
      }
    }
  }

  // Takes the member's part of loop number `ticket`, unless another thread has taken it. Returns
  // true if the calling thread has taken the part and must run it.
  static bool take(Member& member, std::uint32_t ticket) {
    std::uint32_t before = ticket - 1;
    return member.taken.compare_exchange_strong(before, ticket, std::memory_order_acq_rel);
  }

  // Runs a part that the calling thread has taken. Returns whether it was the last one to end.
  bool run_part(const Member& member) {
    (*body)(member.begin, member.end);
    return pending.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  void wake(Member& member) {
    member.ticket.fetch_add(1, std::memory_order_release);
    member.ticket.notify_one();
  }

  // Ends and joins all threads.
  void stop() {
    stopping.store(true, std::memory_order_relaxed);
    for (Member& member : members) {
      wake(member);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  std::vector<Member> members;  // [0] belongs to the caller
  std::vector<std::thread> threads;
  const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  std::atomic<int> pending{0};             // the parts of the members but [0] that have not ended
  std::atomic<std::uint32_t> finished{0};  // counts the loops whose last part a helper has ended
  std::atomic<bool> stopping{false};
};

Workers::Workers(int count) {
  TIDEMILL_CHECK(count >= 1) << count;
  team_ = std::make_unique<Team>(count);
  team_->threads.reserve(static_cast<std::size_t>(count - 1));
  try {
    for (int i = 1; i < count; ++i) {
      Team::Member& member = team_->members[static_cast<std::size_t>(i)];
      team_->threads.emplace_back([this, &member] { team_->run_helper(member); });
    }
  } catch (const std::system_error&) {
    team_->stop();
    throw;
  }
}

Workers::~Workers() {
  team_->stop();
}

int Workers::size() const noexcept {
  return static_cast<int>(team_->members.size());
}

void Workers::parallel_for(std::int64_t n, std::int64_t grain,
                           const std::function<void(std::int64_t, std::int64_t)>& body) {
  TIDEMILL_CHECK(n >= 0 && grain >= 1) << n << " " << grain;
  if (n == 0) {
    return;
  }
  const std::int64_t units = (n - 1) / grain + 1;
  const std::int64_t parts = std::min<std::int64_t>(units, size());
  if (parts == 1) {
    body(0, n);
    return;
  }
  Team& team = *team_;
  const auto start_of = [&](std::int64_t part) {
    return std::min(n, units * part / parts * grain);
  };
  team.body = &body;
  team.pending.store(static_cast<int>(parts - 1), std::memory_order_relaxed);
  const std::uint32_t finished = team.finished.load(std::memory_order_relaxed);
  for (std::int64_t part = 1; part < parts; ++part) {
    Team::Member& member = team.members[static_cast<std::size_t>(part)];
    member.begin = start_of(part);
    member.end = start_of(part + 1);
    team.wake(member);
  }
  body(0, start_of(1));
  for (std::int64_t part = 1; part < parts; ++part) {
    Team::Member& member = team.members[static_cast<std::size_t>(part)];
    if (Team::take(member, member.ticket.load(std::memory_order_relaxed)) &&
        team.run_part(member)) {
      return;
    }
  }
  wait_while_equal(team.finished, finished);
}

}  // namespace tidemill::engines
