// SPDX-License-Identifier: Apache-2.0
// Connections inside one process, for tests and simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/clock.hpp"
#include "transport/connection.hpp"

namespace tidemill::transport {

/// What a network does to frames. Each `double` is a probability per frame.
struct LoopbackFaults {
  double lost = 0.0;
  double repeated = 0.0;
  /// One bit of the frame is flipped.
  double damaged = 0.0;
  /// The connection breaks instead of carrying the frame.
  double broken = 0.0;
  /// The frame may arrive before frames that were sent earlier, which no other connection lets
  /// happen. Has no effect without a delay.
  double reordered = 0.0;
  /// Each frame is delayed by a random time from zero to this one, and by that of the frame before
  /// it. Not negative.
  Duration max_delay{};
};

/// What a network does to one frame.
enum class FrameFate : std::uint8_t {
  kCarried,
  kLost,
  kRepeated,
  kDamaged,
  kBroken,
  kReordered,  // it arrives later, and frames that are sent meanwhile arrive before it
  kDelayed,    // it arrives later, and frames that are sent meanwhile after it
};

/// A network of connections inside one process. The same seed, calls and times give the same
/// events.
///
/// Threads: one call at a time, including calls of its connections. The network must outlive them.
class LoopbackNetwork {
public:
  /// `wake` is called when an event is added, from inside a call; it must not use the network.
  explicit LoopbackNetwork(std::uint64_t seed, const LoopbackFaults& faults = {},
                           std::function<void()> wake = {});
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;
  ~LoopbackNetwork();

  /// Chooses what happens to a frame. Called from inside `Connection::send`.
  using ChooseFate = std::function<FrameFate(const Buffer& frame)>;
  /// Lets `choose` decide what happens to each frame from now on, in place of chance. A frame that
  /// is delayed or reordered arrives after `delay`, which is positive.
  void set_fates(ChooseFate choose, Duration delay);

  using Pair = std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>>;
  /// Makes a connection and returns its two sides.
  [[nodiscard]] Pair connect();

  /// Calls the listeners for what happens until `now`, in the order of time. Times never go back.
  void advance(TimePoint now);
  /// Returns when something happens next, or `TimePoint::max()`.
  [[nodiscard]] TimePoint next_event() const;

private:
  class Side;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidemill::transport
