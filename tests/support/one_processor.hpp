// SPDX-License-Identifier: Apache-2.0
// Keeps a thread on one processor.
#pragma once

#include <sched.h>

#include <gtest/gtest.h>

namespace tidemill::test {

/// Keeps the calling thread, and the threads that it starts meanwhile, on the first processor that
/// it may use, until it is destroyed on the same thread.
class OnOneProcessor {
public:
  OnOneProcessor() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof(before_), &before_), 0);
    int first = 0;
    while (!CPU_ISSET(static_cast<unsigned>(first), &before_)) {
      ++first;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(first), &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OnOneProcessor() { EXPECT_EQ(::sched_setaffinity(0, sizeof(before_), &before_), 0); }
  OnOneProcessor(const OnOneProcessor&) = delete;
  OnOneProcessor& operator=(const OnOneProcessor&) = delete;

private:
  cpu_set_t before_{};
};

}  // namespace tidemill::test
