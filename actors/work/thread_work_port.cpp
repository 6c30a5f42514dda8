// SPDX-License-Identifier: Apache-2.0
// The port for real runs: one thread and a queue.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <pthread.h>
#include <sys/resource.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include <caf/all.hpp>

#include "actors/work/work_port.hpp"

namespace tidemill::actors {
namespace {

class ThreadWorkPort final : public WorkPort {
public:
  ThreadWorkPort(const std::string& name, PortPriority priority)
      : thread_([this, priority] {
          if (priority == PortPriority::kBackground) {
            constexpr int kNice = 10;
            setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);  // of this thread
          }
          run_queue();
        }) {
    constexpr std::size_t kMaxThreadNameLength = 15;
    pthread_setname_np(thread_.native_handle(), name.substr(0, kMaxThreadNameLength).c_str());
  }

  ~ThreadWorkPort() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void run(Work work, caf::strong_actor_ptr receiver, caf::message done) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), std::move(receiver), std::move(done)});
    }
    wake_.notify_one();
  }

private:
  struct Item {
    Work work;
    caf::strong_actor_ptr receiver;
    caf::message done;
  };

  void run_queue() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      Item item = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      item.work();
      item.work = nullptr;  // releases its captures before the receiver runs
      if (item.receiver != nullptr) {
        caf::anon_send(caf::actor_cast<caf::actor>(item.receiver), std::move(item.done));
      }
      item = {};
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  // Bounded: an actor waits for the message of its work before it submits more. Work without a
  // message only frees memory.
  std::deque<Item> queue_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<WorkPort>> make_thread_work_port(const std::string& name,
                                                        PortPriority priority) {
  try {
    return std::unique_ptr<WorkPort>(std::make_unique<ThreadWorkPort>(name, priority));
  } catch (const std::system_error& error) {
    return Status(Errc::kResourceExhausted,
                  "the thread of the port `" + name + "` cannot be started: " + error.what());
  }
}

}  // namespace tidemill::actors
