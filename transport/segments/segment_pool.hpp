// SPDX-License-Identifier: Apache-2.0
// Buffers in shared memory, which other processes of the same user read without a copy.
//
// Buffers in shared memory need three objects. A `SegmentPool` allocates buffers in segments of
// shared memory. A `SegmentServer`, in the same process, gives the memory of segments to readers. A
// `SegmentReader`, usually in another process, resolves the identities of buffers. Messages between
// the processes carry only identities; see base/buffer.hpp.
//
// The life of a buffer:
//   1. The program allocates it from the pool and writes it.
//   2. The program lends it to a reader (`lend`) and then sends the identity in a message. It may
//      now drop its own handle.
//   3. The reader resolves the identity, once for each loan. The first time, it gets the memory of
//      the segment from the server and maps it.
//   4. The reader drops the last handle that came from the loan. This returns the loan.
// A segment is used again, with the next generation, as soon as the program has no handle to its
// buffers and all loans of them have been returned. If the process of a reader dies, its connection
// hangs up, and all of its loans are returned then. A reader that never connects keeps its loans
// until `drop_reader`.
//
// A segment is a memfd without a name, so nothing is left when the processes have ended. The pool
// allocates all pages of a segment before using it, so no access to a segment raises SIGBUS. The
// seals F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_FUTURE_WRITE keep receivers from changing its size or
// content, also through descriptors that they open again; only the mapping of the pool was made
// before the seals and can write. Files of this folder: segment_ledger.hpp has the states of a
// segment, segment_store.hpp joins them with the memory, segment_wire.hpp has the messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/buffer.hpp"
#include "base/buffer_allocator.hpp"
#include "base/result.hpp"
#include "base/status.hpp"

namespace tidemill::transport {

class SegmentStore;

/// The number of readers that a pool has at most.
inline constexpr std::size_t kMaxSegmentReaders = 128;

/// The size and division of a pool. Units: bytes.
struct SegmentPoolOptions {
  /// Names the pool in identities; unique among the pools of a run. Not 0.
  std::uint64_t pool = 0;
  /// The most that all segments have together, whatever their state. Choose less than the memory
  /// that the host or the control group has left: the kernel may kill a process of a group that
  /// exceeds its limit instead of refusing the memory.
  std::uint64_t max_bytes = 0;
  /// The most that free segments have together. More is given back to the system.
  std::uint64_t max_free_bytes = 0;
  /// Buffers of at most an eighth of this share segments of this size. A shared segment is used
  /// again when all of its buffers are unused. A multiple of 4096.
  std::uint64_t shared_segment_bytes = std::uint64_t{1} << 20U;
};

/// What the segments of a pool hold. Units: bytes, excluding the page at the end of each segment
/// that counts loans.
struct SegmentPoolUse {
  std::uint64_t used_bytes = 0;     // of segments whose buffers are in use
  std::uint64_t free_bytes = 0;     // of segments that are kept to be used again
  std::uint64_t retired_bytes = 0;  // of segments that the pool gave back and readers still map
  std::uint64_t segments = 0;
  [[nodiscard]] std::uint64_t held_bytes() const noexcept {
    return used_bytes + free_bytes + retired_bytes;
  }
};

/// A secret that a reader presents when it connects. The owner of the pool generates it and passes
/// it over a channel that no other user can read.
using ReaderToken = std::array<std::byte, 16>;

/// Allows one process to read. A process that starts again is a new reader: drop the old one and
/// add it with a new token.
struct SegmentReaderGrant {
  std::uint32_t reader = 0;  // the number of its process; see `Envelope::sender`
  ReaderToken token{};
  /// The most memory that the loans of the reader may keep in use: the sizes of all segments of
  /// which it holds loans. Units: bytes.
  std::uint64_t max_lent_bytes = 0;
};

/// Allocates buffers in shared memory and lends them to readers.
///
/// Buffers may outlive the pool. After a fork, the child must use neither the pool nor its buffers;
/// it connects a reader of its own. Until the child ends or calls exec, it keeps the memory of the
/// segments that it has inherited.
///
/// Threads: safe to call concurrently. Dropping a handle is safe in any thread; it may run the
/// callbacks below and return memory to the system.
class SegmentPool final : public BufferAllocator {
public:
  using Callback = std::function<void()>;

  /// Requires a pool number, and sizes as `SegmentPoolOptions` describes.
  explicit SegmentPool(const SegmentPoolOptions& options);
  /// Waits for callbacks in progress. The others are never called.
  ~SegmentPool() override;

  /// Returns a buffer that starts on a cache line. Its bytes are undefined.
  /// Errors: `kResourceExhausted` naming the sizes, if `max_bytes` would be exceeded, the pool has
  /// `kMaxSegments` segments, or the system has no memory or no descriptor left.
  [[nodiscard]] Result<UnwrittenBuffer> allocate_unwritten(std::size_t size, DType dtype) override;

  /// Allows a process to read. It may connect once.
  /// Errors: `kInvalidArgument` if there is a reader of that number; `kResourceExhausted` if there
  /// are `kMaxSegmentReaders`.
  [[nodiscard]] Status add_reader(const SegmentReaderGrant& grant);
  /// Returns all loans of a reader, forgets it, and closes its connection. Requires that the
  /// process has ended or no longer uses its buffers, because their bytes may then change. Does
  /// nothing for an unknown reader.
  void drop_reader(std::uint32_t reader);

  /// Permits a reader to resolve `buffer`, or a part of it, once. Requires a resolved handle. Lend
  /// a buffer as often as messages carry it.
  /// Errors, naming the buffer: `kResourceExhausted` if the reader may not keep that much, until it
  /// returns loans; `kInvalidArgument` if it never may, or the buffer is not of this pool;
  /// `kNotFound` for an unknown reader; `kUnavailable` if the reader has hung up.
  [[nodiscard]] Status lend(const Buffer& buffer, std::uint32_t reader);
  /// Undoes a `lend` of `buffer` whose message was not sent. Does nothing if the reader has hung up
  /// or was dropped. Requires that the reader has not learned of the loan.
  void take_back(const Buffer& buffer, std::uint32_t reader);

  /// Calls `callback` once: when `size` bytes fit within `max_bytes` and `kMaxSegments`, or
  /// immediately if they never will. The call comes from this call or from the thread that has made
  /// the room, and several callbacks may be called for the same room. A callback must neither block
  /// nor destroy the pool. The allocation may still fail if the system lacks memory or descriptors.
  void when_room(std::uint64_t size, Callback callback);
  /// Calls `callback` once, when lending `buffer` to `reader` does not fail with
  /// `kResourceExhausted`, for example because the reader has hung up. Keeps the buffer until then.
  /// Otherwise as `when_room`.
  void when_lendable(const Buffer& buffer, std::uint32_t reader, Callback callback);

  /// Returns the number of the pool in identities.
  [[nodiscard]] std::uint64_t number() const noexcept;
  /// Returns the most that its segments may have together. Units: bytes.
  [[nodiscard]] std::uint64_t max_bytes() const noexcept;
  [[nodiscard]] SegmentPoolUse use() const;
  /// Returns how much memory the loans of a reader keep in use: the sizes of all segments of which
  /// it holds loans; 0 for an unknown reader. Units: bytes.
  [[nodiscard]] std::uint64_t lent_bytes(std::uint32_t reader) const;

private:
  friend class SegmentServer;
  std::shared_ptr<SegmentStore> store_;  // shared with the buffers
};

}  // namespace tidemill::transport
