// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. How the thread of one process sleeps until the other process wakes it.
//
// Each side has a word in shared memory. It says for which events the thread of the side sleeps. To
// sleep, the thread
//   1. stores what it sleeps for into its word,
//   2. looks at everything that it waits for once more,
//   3. waits with a futex while the word has that value, unless step 2 found something.
// To wake it, another thread
//   1. publishes the event, such as a count of a ring,
//   2. loads the word, and does nothing more if the thread does not sleep for the event,
//   3. otherwise sets the word to 0 and wakes the waiter.
// All of these operations are sequentially consistent. In their single order, either the store of
// the word precedes the waker's load, and the waker wakes; or the publication precedes the
// sleeper's look, and the sleeper finds the event. If the word changes between the look and the
// wait, the kernel compares it with the stored value and refuses to wait. No wake-up is therefore
// lost, and a waker makes no system call while the other thread is awake.
//
// The other process can store anything into the word. It can so prevent its own wake-ups, which
// delays its own frames only. It must not prevent those that end the connection; ShmSide repeats
// these until the thread is awake.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidemill::transport::shm {

/// The word of one side: 0, or the events for which its thread sleeps. Lies in shared memory.
using SleepWord = std::atomic<std::uint32_t>;
static_assert(SleepWord::is_always_lock_free && sizeof(SleepWord) == 4);

/// The bits of a `SleepWord`.
inline constexpr std::uint32_t kSleeps = 1;         // set whenever the thread sleeps
inline constexpr std::uint32_t kSleepsForRoom = 2;  // it has bytes that the ring had no room for

/// Waits until another thread wakes the waiters of `word`, unless its value is not `value`. May
/// also return without a reason.
void sleep_while(SleepWord& word, std::uint32_t value) noexcept;
/// Wakes the thread that sleeps on `word` if it sleeps for one of `events`.
void wake_if(SleepWord& word, std::uint32_t events) noexcept;
/// Wakes the thread that sleeps on `word`, whatever its value is.
void wake_always(SleepWord& word) noexcept;

/// Tells the processor that this thread is in a loop that waits for another one.
inline void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tidemill::transport::shm
