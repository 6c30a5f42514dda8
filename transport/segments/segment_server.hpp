// SPDX-License-Identifier: Apache-2.0
// Gives the memory of a pool's segments to the processes that read them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/segments/segment_pool.hpp"

namespace tidemill::transport {

/// The number of connections that have not presented themselves as a reader. One more closes the
/// oldest of them.
inline constexpr std::size_t kMaxStrangers = 16;

/// Where a server listens, and how long it waits. Durations are positive and at most a day.
struct SegmentServerOptions {
  /// The path of a socket, of any length. Only the user of this process may connect. A
  /// socket that a killed process has left there is replaced.
  std::filesystem::path path;
  /// A connection that does not present itself as a reader for this long is closed.
  Duration max_hello_wait = std::chrono::seconds(2);
  /// A reader that has asked for a segment and does not take the response for this long is closed.
  Duration max_send_wait = std::chrono::seconds(10);
  /// If not empty: receives the reason for each connection that the server closes or refuses, one
  /// line for a log. Called by the thread of the server; must not block.
  std::function<void(const Status&)> on_closed;
  /// If not empty: gets the reason each time a connection cannot be accepted for lack of
  /// descriptors, memory or threads. It is tried again. Called by the thread of the server; must
  /// not block.
  std::function<void(const Status&)> on_trouble = {};
};

/// Serves the readers of one pool from a thread of its own, until it is destroyed. Then all
/// connections close, and the loans of all readers are returned.
///
/// A connection belongs to one reader of the pool, from its first message to its end. The reader
/// may not connect again; see `SegmentReaderGrant`. A connection that breaks the rules of the
/// messages is closed, as if its process had died. Other connections are not affected.
///
/// Threads: safe to call concurrently; destroyed by one thread that makes no other call.
class SegmentServer {
public:
  /// Listens at a path. The pool must outlive the server.
  /// Errors: `kInvalidArgument` for a name that is too long, is not a socket, or at which another
  /// process listens; otherwise as `system_error`.
  [[nodiscard]] static Result<std::unique_ptr<SegmentServer>> listen(SegmentPool& pool,
                                                                     SegmentServerOptions options);
  SegmentServer(const SegmentServer&) = delete;
  SegmentServer& operator=(const SegmentServer&) = delete;
  /// Removes the socket.
  ~SegmentServer();

private:
  class Loop;
  explicit SegmentServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace tidemill::transport
