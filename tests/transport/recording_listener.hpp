// SPDX-License-Identifier: Apache-2.0
// A listener that keeps what a connection reports, for the tests of connections.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "transport/connection.hpp"

namespace tidemill::transport {

/// Returns how many calls of connections this thread is inside.
inline int& calls_of_this_thread() {
  static thread_local int calls = 0;
  return calls;
}

/// Runs `action` as a call of a connection, from inside which no listener may be called.
template <class F>
auto calling(F action) {
  struct Inside {
    Inside() { ++calls_of_this_thread(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { --calls_of_this_thread(); }
  };
  const Inside inside;
  return action();
}

/// Keeps what a connection reports.
///
/// Threads: safe to use concurrently.
class RecordingListener final : public ConnectionListener {
public:
  void on_frame(const Buffer& frame) override {
    EXPECT_EQ(calls_of_this_thread(), 0) << "called from inside a call of a connection";
    {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(closed_, 0) << "a frame after the end";
      frames_.push_back(frame);
    }
    if (on_frame_) {
      on_frame_(frame);
    }
  }
  void on_closed(const Status& reason) override {
    EXPECT_EQ(calls_of_this_thread(), 0) << "called from inside a call of a connection";
    EXPECT_FALSE(reason.ok());
    const std::lock_guard lock(mutex_);
    ++closed_;
    reason_ = reason;
  }

  /// Sets what `on_frame` does. Call it before frames arrive.
  void set_on_frame(std::function<void(const Buffer&)> action) { on_frame_ = std::move(action); }

  [[nodiscard]] std::vector<Buffer> frames() const {
    const std::lock_guard lock(mutex_);
    return frames_;
  }
  [[nodiscard]] int closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  [[nodiscard]] Status reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

private:
  mutable std::mutex mutex_;
  std::function<void(const Buffer&)> on_frame_;
  std::vector<Buffer> frames_;
  int closed_ = 0;
  Status reason_;
};

}  // namespace tidemill::transport
