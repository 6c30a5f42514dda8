// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_side.hpp"

#include <chrono>
#include <optional>
#include <pthread.h>
#include <sys/socket.h>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "transport/envelope.hpp"
#include "transport/frame_size.hpp"

namespace tidemill::transport::shm {
namespace {

// How often a spinning thread looks for work before it looks at the clock.
constexpr int kLooksPerTime = 32;
// After this many spins in a row that found no work, it spins only once in `kWaitsPerTry` waits.
constexpr std::uint64_t kMaxVainSpins = 4;
constexpr std::uint64_t kWaitsPerTry = 256;

Role other_of(Role role) {
  return role == Role::kConnector ? Role::kAcceptor : Role::kConnector;
}

Control::Side& control_of(const SharedMemory& memory, Role role) {
  return memory.control().sides[static_cast<std::size_t>(role)];
}

Status impossible_count() {
  return corrupt_data("connection: the other process has written an impossible count");
}

}  // namespace

Result<std::unique_ptr<Connection>> ShmSide::create(SideParts parts) {
  std::unique_ptr<ShmSide> side;
  try {
    side.reset(new ShmSide(std::move(parts)));
  } catch (const std::system_error&) {
    return Status(Errc::kResourceExhausted, "connection: cannot start a thread");
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      side->watched_, side->watcher_->watch(side->socket_.get(), [self = side.get()] {
        self->end(Phase::kDraining, {Errc::kUnavailable,
                                     "the other side has closed the connection, or its process "
                                     "has ended"});
      }));
  return std::unique_ptr<Connection>(std::move(side));
}

ShmSide::ShmSide(SideParts parts)
    : memory_(std::move(parts.memory)),
      socket_(std::move(parts.socket)),
      watcher_(std::move(parts.watcher)),
      spin_(parts.spin),
      own_word_(control_of(memory_, parts.role).sleep),
      other_word_(control_of(memory_, other_of(parts.role)).sleep),
      writer_(control_of(memory_, parts.role).counts, memory_.ring(parts.role)),
      reader_(control_of(memory_, other_of(parts.role)).counts, memory_.ring(other_of(parts.role))),
      thread_([this] { run(); }) {
  memory_.close_descriptor();  // the mapping suffices
  pthread_setname_np(thread_.native_handle(), "shm-connection");
}

ShmSide::~ShmSide() {
  {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  close();
  changed_.notify_all();
  thread_.join();
  if (watched_ != 0) {
    watcher_->forget(watched_);
  }
}

void ShmSide::start(ConnectionListener& listener) {
  {
    const std::lock_guard lock(mutex_);
    TIDEMILL_CHECK(listener_.load() == nullptr) << "started twice";
    listener_ = &listener;
  }
  changed_.notify_all();
  if (sleeping_) {
    wake_always(own_word_);
  }
}

Status ShmSide::send(const Buffer& frame) {
  TIDEMILL_RETURN_IF_ERROR(check_frame_size(frame));
  OutgoingFrame outgoing{frame};
  WriteStep step = WriteStep::kFull;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kOpen) {
      return {Errc::kUnavailable, "connection: it is closed"};
    }
    if (queue_.empty()) {
      while ((step = write_piece(writer_, outgoing)) == WriteStep::kPiece) {
        wake_if(other_word_, kSleeps);  // it reads the first pieces while this copies the others
      }
    }
    if (step == WriteStep::kFull) {
      queue_.push_back(std::move(outgoing));
      queued_ = true;
    }
  }
  if (step == WriteStep::kBrokenCount) {
    end(Phase::kClosed, impossible_count());
    return {Errc::kUnavailable, "connection: it is closed"};
  }
  wake_if(other_word_, kSleeps);
  // The thread sleeps for room only if it has seen the queue.
  if (step == WriteStep::kFull && sleeping_) {
    wake_always(own_word_);
  }
  return {};
}

void ShmSide::close() {
  end(Phase::kClosed, {Errc::kUnavailable, "this side has closed the connection"});
}

// Enters `phase`, unless the side has already gone as far.
void ShmSide::end(Phase phase, const Status& reason) {
  std::deque<OutgoingFrame> dropped;  // freed without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (phase_ >= phase) {
      return;
    }
    if (phase_ == Phase::kOpen) {
      reason_ = reason;
    }
    phase_ = phase;
    dropped.swap(queue_);
    queued_ = false;
  }
  ::shutdown(socket_.get(), SHUT_RDWR);  // tells the other side
  // The other process may set the word again just before the thread waits for it (shm_sleep.hpp),
  // so one call is not certain to wake the thread. After it is awake, it sees the phase and does
  // not sleep again.
  while (sleeping_) {
    wake_always(own_word_);
    std::this_thread::yield();
  }
}

// Writes a part of the queue. Returns whether it wrote anything.
bool ShmSide::flush() {
  WriteStep step = WriteStep::kFull;
  OutgoingFrame done;  // freed without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) {
      step = write_piece(writer_, queue_.front());
      if (step == WriteStep::kDone) {
        done = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    queued_ = !queue_.empty();
  }
  if (step == WriteStep::kBrokenCount) {
    end(Phase::kClosed, impossible_count());
  } else if (step != WriteStep::kFull) {
    wake_if(other_word_, kSleeps);
  }
  return step != WriteStep::kFull;
}

// Reads a piece, and passes on the frame that it completes. Returns whether there was one.
bool ShmSide::read(ConnectionListener& listener) {
  const ReadStep step = frames_.read_piece(reader_);
  switch (step) {
    case ReadStep::kNothing: return false;
    case ReadStep::kPiece:
    case ReadStep::kFrame: break;
    case ReadStep::kBrokenCount: end(Phase::kClosed, impossible_count()); return true;
    case ReadStep::kTooLarge:
      end(Phase::kClosed, corrupt_data("connection: the other process has sent a frame of " +
                                       std::to_string(frames_.size_bytes()) + " bytes (at most " +
                                       std::to_string(kMaxEnvelopeBytes) + ")"));
      return true;
    case ReadStep::kNoMemory:
      end(Phase::kClosed,
          {Errc::kResourceExhausted, "connection: no memory for a frame of " +
                                         std::to_string(frames_.size_bytes()) + " bytes"});
      return true;
  }
  if (reader_.known_room() >= room_to_go_on(reader_.capacity())) {
    wake_if(other_word_, kSleepsForRoom);
  }
  if (step == ReadStep::kFrame) {
    const Buffer frame = frames_.take();
    if (phase_ != Phase::kClosed) {
      listener.on_frame(frame);
    }
  }
  return true;
}

// Does a part of the work. Returns whether there was some.
bool ShmSide::work() {
  const bool flushed = queued_ && flush();
  ConnectionListener* const listener = listener_;
  const bool has_read = listener != nullptr && read(*listener);
  return flushed || has_read;
}

bool ShmSide::has_work() {
  if (phase_ != Phase::kOpen || (listener_ != nullptr && reader_.has_news())) {
    return true;
  }
  if (!queued_) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = room_to_go_on(writer_.capacity());
  const std::optional<std::size_t> room = writer_.room(wanted);
  return !room.has_value() || *room >= wanted;
}

// The steps of shm_sleep.hpp. Threads of this process cause events too. They look at `sleeping_`
// instead of the word, which the other process can change. A frame that is queued after `for_room`
// was loaded is such an event, so the word that does not ask for room is not waited for.
void ShmSide::sleep() {
  sleeping_ = true;
  const bool for_room = queued_;
  const std::uint32_t word = kSleeps | (for_room ? kSleepsForRoom : 0);
  own_word_ = word;
  if (!has_work()) {
    sleep_while(own_word_, word);
  }
  own_word_ = 0;
  sleeping_ = false;
}

// Looks for work for at most the time of the option. Returns whether it found some.
bool ShmSide::spin() {
  const auto end = std::chrono::steady_clock::now() + spin_;
  do {
    for (int i = 0; i < kLooksPerTime; ++i) {
      if (has_work()) {
        return true;
      }
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// Spinning saves two switches between threads if the other process runs on another processor and
// writes soon. Otherwise it wastes time, and on the same processor it even delays the other
// process. The thread therefore stops spinning if that finds nothing, and tries again from time to
// time.
void ShmSide::wait_for_work() {
  ++num_waits_;
  if (spin_ > Duration::zero() &&
      (num_vain_spins_ < kMaxVainSpins || num_waits_ % kWaitsPerTry == 0)) {
    if (spin()) {
      num_vain_spins_ = 0;
      return;
    }
    ++num_vain_spins_;
  }
  sleep();
}

// Ends the side: passes on what was in the ring, and then the reason.
void ShmSide::finish() {
  Status reason;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return listener_ != nullptr || destroyed_; });
    reason = reason_;
  }
  ConnectionListener* const listener = listener_;
  // Frozen: another process that still has the memory must not keep this one reading.
  if (phase_ == Phase::kDraining && listener != nullptr && reader_.freeze()) {
    while (phase_ == Phase::kDraining && read(*listener)) {
    }
  }
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kClosed;
    if (destroyed_) {
      return;
    }
  }
  listener->on_closed(reason);
}

void ShmSide::run() {
  while (phase_ == Phase::kOpen) {
    if (!work()) {
      wait_for_work();
    }
  }
  finish();
}

}  // namespace tidemill::transport::shm
