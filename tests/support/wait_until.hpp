// SPDX-License-Identifier: Apache-2.0
// Waits for what another thread or process does without telling the test.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace tidemill::test {

/// Looks until `done` returns true. Returns false if that takes longer than `limit`. Only for what
/// cannot wake the test: it sleeps between two looks, and a test that passes does not wait long.
inline bool wait_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace tidemill::test
