// SPDX-License-Identifier: Apache-2.0
// What the tests of connections through shared memory need: an acceptor, and waiting for threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "base/check.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wait_until.hpp"
#include "transport/shm/shm_connection.hpp"

namespace tidemill::transport {

/// How long a test waits for what must happen. A test that passes does not wait that long.
inline constexpr std::chrono::seconds kPatience{20};

/// Returns whether `done` becomes true. The listeners of the suite do not notify.
inline bool wait_until(const std::function<bool()>& done) {
  return test::wait_until(done, kPatience);
}

/// What a thread of this process is doing.
struct ThreadActivity {
  std::string state;     // "S" if it sleeps
  std::string switches;  // grows whenever the thread goes to sleep
  friend bool operator==(const ThreadActivity&, const ThreadActivity&) = default;
};

/// Returns the activity of the threads of this process by their ids.
inline std::map<std::string, ThreadActivity> thread_activities() {
  std::map<std::string, ThreadActivity> activities;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream status(entry.path() / "status");
    ThreadActivity& activity = activities[entry.path().filename().string()];
    for (std::string key; status >> key;) {
      if (key == "State:") {
        status >> activity.state;
      } else if (key == "voluntary_ctxt_switches:") {
        status >> activity.switches;
      }
    }
  }
  return activities;
}

/// Waits until all other threads of this process sleep and none has run meanwhile. Nothing is on
/// the way between them then.
inline void wait_for_quiet() {
  const std::string self = std::to_string(::gettid());
  std::map<std::string, ThreadActivity> before;
  ASSERT_TRUE(wait_until([&] {
    std::map<std::string, ThreadActivity> now = thread_activities();
    now.erase(self);
    const bool quiet = now == before && std::ranges::all_of(now, [](const auto& one) {
                         return one.second.state == "S";
                       });
    before = std::move(now);
    return quiet;
  }));
}

/// Listens in a temporary directory and keeps the connections that it accepts.
class ShmHost {
public:
  explicit ShmHost(const ShmOptions& options = {}) {
    auto acceptor = listen_shm(
        socket(),
        [this](std::unique_ptr<Connection> connection) {
          const std::lock_guard lock(mutex_);
          accepted_.push_back(std::move(connection));
          ++num_accepted_;
        },
        options);
    TIDEMILL_CHECK(acceptor.ok()) << acceptor.status().to_string();
    acceptor_ = std::move(acceptor).value();
  }

  [[nodiscard]] std::filesystem::path socket() const { return directory_.path() / "socket"; }
  [[nodiscard]] std::size_t num_accepted() const {
    const std::lock_guard lock(mutex_);
    return num_accepted_;
  }
  /// Waits for the next connection and returns it, or null if none arrives.
  [[nodiscard]] std::unique_ptr<Connection> accepted() {
    std::unique_ptr<Connection> result;
    (void)wait_until([&] {
      const std::lock_guard lock(mutex_);
      if (!accepted_.empty()) {
        result = std::move(accepted_.front());
        accepted_.erase(accepted_.begin());
      }
      return result != nullptr;
    });
    return result;
  }
  /// Destroys the acceptor.
  void end() { acceptor_.reset(); }

private:
  test::TemporaryDirectory directory_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> accepted_;
  std::size_t num_accepted_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
};

/// Returns a frame of at least 8 bytes, which begins with `number` and whose other bytes follow
/// from it.
inline Buffer numbered_frame(std::uint64_t number, std::size_t size) {
  std::vector<std::byte> bytes(size, static_cast<std::byte>(number * 7 + 1));
  std::memcpy(bytes.data(), &number, sizeof(number));
  return Buffer::adopt(std::move(bytes), DType::kU8);
}

/// Returns the number of a frame that `numbered_frame` made. Expects that nothing changed it.
inline std::uint64_t number_of(const Buffer& frame) {
  std::uint64_t number = 0;
  TIDEMILL_CHECK(frame.size_bytes() >= sizeof(number));
  std::memcpy(&number, frame.bytes().data(), sizeof(number));
  EXPECT_TRUE(std::ranges::all_of(frame.bytes().subspan(sizeof(number)), [&](std::byte byte) {
    return byte == static_cast<std::byte>(number * 7 + 1);
  })) << number;
  return number;
}

}  // namespace tidemill::transport
