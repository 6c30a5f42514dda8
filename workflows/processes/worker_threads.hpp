// SPDX-License-Identifier: Apache-2.0
// Workers that run in threads of the process of a run, in the place of processes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>

#include "base/status.hpp"

namespace tidemill::workflows {

/// Threads that can be asked to end. The destructor asks all of them, and waits until they have.
///
/// Threads: safe to call concurrently, except from inside `OnEnd`.
class WorkerThreads {
public:
  using Body = std::function<Status(const std::stop_token& stop)>;
  /// Called once for each thread with what its body has returned, by that thread; or, if the thread
  /// cannot be created, by `start` with `kResourceExhausted`.
  using OnEnd = std::function<void(const Status& end)>;

  WorkerThreads() = default;
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;
  ~WorkerThreads();

  /// Starts a thread, and returns its number in this object.
  std::uint64_t start(Body body, const OnEnd& on_end);
  /// Returns whether the thread with this number runs.
  [[nodiscard]] bool runs(std::uint64_t number) const;
  /// Asks the thread with this number to end. Does not wait. Unknown numbers are ignored.
  void stop(std::uint64_t number);

private:
  struct Worker;

  mutable std::mutex mutex_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Worker>> workers_;
};

}  // namespace tidemill::workflows
