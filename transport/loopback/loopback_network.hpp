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
