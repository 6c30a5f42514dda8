// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. Notices that another process has closed a socket, or has ended.
//
// The kernel closes the sockets of a process that ends, however it ends, so no heartbeats are
// needed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "base/result.hpp"

namespace tidemill::transport::shm {

/// Watches sockets with one thread.
///
/// Threads: safe to call concurrently; not from inside a callback.
class HangUpWatcher {
public:
  /// Errors: `kResourceExhausted` without descriptors or threads.
  [[nodiscard]] static Result<std::shared_ptr<HangUpWatcher>> create();
  HangUpWatcher(const HangUpWatcher&) = delete;
  HangUpWatcher& operator=(const HangUpWatcher&) = delete;
  /// Requires that nothing is watched.
  ~HangUpWatcher();

  /// Calls `on_hang_up` once, when the other side of `socket` has closed it. Returns the number
  /// with which `forget` ends this. The socket must stay open until then. Errors:
  /// `kResourceExhausted`.
  [[nodiscard]] Result<std::uint64_t> watch(int socket, std::function<void()> on_hang_up);
  /// Stops to watch. Waits for a call in progress, and none follows.
  void forget(std::uint64_t number);

private:
  struct Watched {
    int socket;
    std::function<void()> on_hang_up;
  };

  HangUpWatcher(UniqueFd epoll, UniqueFd stop);
  void run();
  void report(std::uint64_t number);

  UniqueFd epoll_;
  UniqueFd stop_;     // an eventfd that ends the thread
  std::mutex mutex_;  // held during callbacks
  std::map<std::uint64_t, Watched> watched_;
  std::uint64_t last_number_ = 0;
  std::thread thread_;
};

}  // namespace tidemill::transport::shm
