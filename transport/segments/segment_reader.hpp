// SPDX-License-Identifier: Apache-2.0
// Resolves the identities of buffers that a pool of another process has lent to this one.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/segments/segment_pool.hpp"

namespace tidemill::transport {

/// How a reader connects, and how long it waits. Durations are positive and at most a day.
struct SegmentReaderOptions {
  std::filesystem::path path;  // of the server
  std::uint32_t reader = 0;    // as in the grant of the pool's owner
  ReaderToken token{};
  /// How long `connect` waits for the server.
  Duration max_connect_wait = std::chrono::seconds(5);
  /// How long `resolve` waits for the memory of a segment.
  Duration max_segment_wait = std::chrono::seconds(10);
  /// If not empty: called once, by the thread of the reader, if the server closes the connection.
  /// If the server process has ended, buffers keep their content. Otherwise the pool may write to
  /// them from now on, so the program must drop them. Must not destroy the reader.
  std::function<void(const Status&)> on_lost;
};

/// Maps segments of one pool and returns loans.
///
/// A buffer from `resolve` holds its loan until the last handle to it and to its parts is dropped.
/// A program that does not want a buffer of a message resolves it all the same and drops it. A
/// thread of the reader returns loans, so dropping a handle does not wait for the server. Many
/// loans are returned in one message. The memory of a segment stays mapped until the pool gives it
/// back to the system.
///
/// Buffers may outlive the reader. Their loans are then returned together, when the last of them
/// has been dropped. A process that was forked keeps the connection of its parent open until it
/// ends or calls exec, and with it the loans.
///
/// Threads: safe to call concurrently; destroyed by one thread that makes no other call. Dropping a
/// handle is safe in any thread.
class SegmentReader {
public:
  /// Connects to a server.
  /// Errors: `kUnavailable` if none listens at the path or it does not respond in time, has another
  /// version, or the reader has connected before; `kNotFound` if it does not know the reader with
  /// this token; `kInvalidArgument` for a name that is too long; `kResourceExhausted`.
  [[nodiscard]] static Result<std::unique_ptr<SegmentReader>> connect(
      const SegmentReaderOptions& options);
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;
  ~SegmentReader();

  /// Returns the pool whose buffers this reader resolves.
  [[nodiscard]] std::uint64_t pool() const noexcept;

  /// Returns a handle to the bytes that `identity` names, which may come from any message. Uses one
  /// loan. Only the first call for a segment waits, for the server; any other one makes neither a
  /// system call nor a copy.
  /// Errors, naming the buffer: `kNotFound` if it is not lent to this reader, or each of its loans
  /// was used; `kStaleVersion` if its segment was used again since, because no loan kept it;
  /// `kInvalidArgument` if the range is not in the segment; `kTimeout`; `kUnavailable` if the
  /// connection is lost; `kCorruptData` for memory that is not sealed; `kResourceExhausted`.
  [[nodiscard]] Result<Buffer> resolve(const BufferIdentity& identity);

private:
  class Core;
  explicit SegmentReader(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;  // shared with the buffers
};

}  // namespace tidemill::transport
