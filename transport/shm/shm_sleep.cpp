// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_sleep.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tidemill::transport::shm {
namespace {

// Not FUTEX_PRIVATE_FLAG: the word is shared with another process. The result does not matter,
// because the caller looks at what it waits for after every return.
void futex(SleepWord& word, int operation, std::uint32_t value) noexcept {
  (void)::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

void sleep_while(SleepWord& word, std::uint32_t value) noexcept {
  futex(word, FUTEX_WAIT, value);
}

void wake_if(SleepWord& word, std::uint32_t events) noexcept {
  if ((word.load() & events) != 0) {
    wake_always(word);
  }
}

void wake_always(SleepWord& word) noexcept {
  word.store(0);
  futex(word, FUTEX_WAKE, 1);
}

}  // namespace tidemill::transport::shm
