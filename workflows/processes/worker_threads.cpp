// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/worker_threads.hpp"

#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

namespace tidemill::workflows {

struct WorkerThreads::Worker {
  std::atomic<bool> ended = false;
  std::jthread thread;
};

WorkerThreads::~WorkerThreads() {
  std::map<std::uint64_t, std::shared_ptr<Worker>> workers;
  {
    const std::lock_guard lock(mutex_);
    workers.swap(workers_);
  }
  for (const auto& [number, worker] : workers) {
    worker->thread.request_stop();
  }
  workers.clear();  // waits for them
}

std::uint64_t WorkerThreads::start(Body body, const OnEnd& on_end) {
  const auto worker = std::make_shared<Worker>();
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(workers_, [](const auto& entry) { return entry.second->ended.load(); });
    number = ++last_number_;
    try {
      worker->thread = std::jthread(
          [ended = &worker->ended, body = std::move(body), on_end](const std::stop_token& stop) {
            on_end(body(stop));
            *ended = true;
          });
      workers_.emplace(number, worker);
      return number;
    } catch (const std::system_error&) {
      // Said below, without the lock.
    }
  }
  on_end({Errc::kResourceExhausted, "cannot start a thread"});
  return number;
}

bool WorkerThreads::runs(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto it = workers_.find(number);
  return it != workers_.end() && !it->second->ended;
}

void WorkerThreads::stop(std::uint64_t number) {
  std::shared_ptr<Worker> worker;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = workers_.find(number); it != workers_.end()) {
      worker = it->second;
    }
  }
  if (worker != nullptr) {
    worker->thread.request_stop();
  }
}

}  // namespace tidemill::workflows
