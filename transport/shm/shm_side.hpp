// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. One side of a connection through shared memory.
//
// Phases of a side, and the events that change them:
//   open      -> draining  the other side has hung up
//   open      -> closed    this side closes it or is destroyed, or the other side breaks the rules
//   draining  -> closed    the same
// In `draining`, nothing can be sent, and the thread passes on the frames that were already in the
// ring. `on_closed` follows, in `closed` at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"
#include "transport/connection.hpp"
#include "transport/shm/hang_up_watcher.hpp"
#include "transport/shm/shm_frames.hpp"
#include "transport/shm/shm_memory.hpp"
#include "transport/shm/shm_ring.hpp"
#include "transport/shm/shm_sleep.hpp"

namespace tidemill::transport::shm {

/// What a side consists of.
struct SideParts {
  Role role;  // of this side
  SharedMemory memory;
  UniqueFd socket;  // hangs up when the other side ends
  std::shared_ptr<HangUpWatcher> watcher;
  Duration spin;
};

class ShmSide final : public Connection {
public:
  /// Errors: `kResourceExhausted` without threads or descriptors.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> create(SideParts parts);
  ~ShmSide() override;

  void start(ConnectionListener& listener) override;
  Status send(const Buffer& frame) override;
  void close() override;

private:
  enum class Phase : std::uint8_t { kOpen, kDraining, kClosed };

  explicit ShmSide(SideParts parts);
  void end(Phase phase, const Status& reason);

  // The functions of the thread.
  void run();
  bool work();
  bool flush();
  bool read(ConnectionListener& listener);
  void wait_for_work();
  bool spin();
  void sleep();
  [[nodiscard]] bool has_work();
  void finish();

  SharedMemory memory_;
  UniqueFd socket_;
  const std::shared_ptr<HangUpWatcher> watcher_;
  const Duration spin_;
  SleepWord& own_word_;
  SleepWord& other_word_;
  std::uint64_t watched_ = 0;  // the number of `socket_` at the watcher, or 0

  // Written under `mutex_`; the thread looks at them without it.
  std::atomic<Phase> phase_ = Phase::kOpen;
  std::atomic<ConnectionListener*> listener_ = nullptr;
  std::atomic<bool> queued_ = false;  // whether `queue_` has frames
  // Whether the thread may be about to sleep, or sleeps. The other process cannot change it.
  std::atomic<bool> sleeping_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;  // `listener_` or `destroyed_`
  bool destroyed_ = false;
  Status reason_;  // unless open
  RingWriter writer_;
  std::deque<OutgoingFrame> queue_;  // what had no room in the ring

  // Used by the thread only.
  RingReader reader_;
  FrameReader frames_;
  std::uint64_t num_waits_ = 0;
  std::uint64_t num_vain_spins_ = 0;  // since the last one that found work

  std::thread thread_;
};

}  // namespace tidemill::transport::shm
