// SPDX-License-Identifier: Apache-2.0
// Private to transport/segments. What a pool, its buffers and its server share: the ledger, the
// memory of the segments, the readers, and the lock that guards them.
//
// States of a reader:
//   kExpected   `add_reader` has added it. It may be given loans.
//                 Its process connects (`admit`): -> kConnected.
//   kConnected  the server serves one connection of it; others are refused.
//                 The connection closes (`hang_up`): -> kGone.
//   kGone       its loans are returned, and it is given no more.
// `drop_reader` ends each state, and the number may be added again.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/buffer.hpp"
#include "base/buffer_allocator.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/segments/segment_ledger.hpp"
#include "transport/segments/segment_memory.hpp"
#include "transport/segments/segment_pool.hpp"

namespace tidemill::transport {

/// A reader that has connected.
struct AdmittedReader {
  ReaderKey key = 0;
  std::size_t index = 0;  // its index in the loan words of each segment
};

/// What the server has to tell the process of a connected reader.
struct ReaderNotice {
  /// kUnmap: unmap `segment`. kDropped: the connection ends.
  enum class Kind : std::uint8_t { kUnmap, kDropped };
  Kind kind = Kind::kUnmap;
  ReaderKey reader = 0;
  std::uint64_t segment = 0;  // of kUnmap
};

/// Loans of one segment that a reader returns.
struct ReturnedLoans {
  std::uint64_t segment = 0;
  std::uint32_t generation = 0;
  std::uint32_t count = 0;
};

/// The state of a pool. Buffers share its ownership.
///
/// Threads: safe to call concurrently. No lock is held while callbacks run and memory is unmapped.
class SegmentStore final : public std::enable_shared_from_this<SegmentStore> {
public:
  explicit SegmentStore(const SegmentPoolOptions& options);
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  // -- for the pool; as its functions of these names
  // -----------------------------------------------

  [[nodiscard]] Result<UnwrittenBuffer> allocate_unwritten(std::uint64_t size, DType dtype);
  [[nodiscard]] Status add_reader(const SegmentReaderGrant& grant);
  void drop_reader(std::uint32_t reader);
  [[nodiscard]] Status lend(const Buffer& buffer, std::uint32_t reader);
  void take_back(const Buffer& buffer, std::uint32_t reader);
  void when_room(std::uint64_t size, SegmentPool::Callback callback);
  void when_lendable(const Buffer& buffer, std::uint32_t reader, SegmentPool::Callback callback);
  [[nodiscard]] SegmentPoolUse use() const;
  [[nodiscard]] std::uint64_t lent_bytes(std::uint32_t reader) const;
  /// Drops the callbacks and waits for those in progress.
  void stop_callbacks();

  // -- for the server
  // ------------------------------------------------------------------------------

  [[nodiscard]] std::uint64_t pool() const noexcept { return options_.pool; }
  [[nodiscard]] std::uint64_t max_bytes() const noexcept { return options_.max_bytes; }
  /// Calls `wake`, which must not block, whenever there are new notices. Empty: no more.
  void set_wake(std::function<void()> wake);
  [[nodiscard]] std::vector<ReaderNotice> take_notices();
  /// A process has presented itself as a reader.
  /// Errors: `kNotFound` if there is no such reader or the token is wrong; `kUnavailable` if it has
  /// connected before.
  [[nodiscard]] Result<AdmittedReader> admit(std::uint32_t reader, const ReaderToken& token);
  /// The connection of an admitted reader has closed. Does nothing for a dropped reader.
  void hang_up(ReaderKey reader);
  /// Returns the memory of a segment for a reader that maps it.
  /// Errors: those of `SegmentLedger::map`; `kUnavailable` if the reader was dropped.
  [[nodiscard]] Result<std::shared_ptr<const SegmentMemory>> map(ReaderKey reader,
                                                                 std::uint64_t segment);
  /// A reader returns loans.
  /// Errors: those of `SegmentLedger::give_back`; `kUnavailable` if the reader was dropped.
  [[nodiscard]] Status give_back(ReaderKey reader, std::span<const ReturnedLoans> loans);
  /// A reader has unmapped a segment.
  /// Errors: those of `SegmentLedger::unmap`; `kUnavailable` if the reader was dropped.
  [[nodiscard]] Status unmap(ReaderKey reader, std::uint64_t segment);

private:
  using Lock = std::unique_lock<std::mutex>;
  enum class ReaderState : std::uint8_t { kExpected, kConnected, kGone };
  struct Reader {
    ReaderKey key = 0;
    std::size_t index = 0;
    ReaderState state = ReaderState::kExpected;
    ReaderToken token{};
  };
  struct Waiter {
    std::function<bool()> ready;  // called with the lock
    SegmentPool::Callback callback;
  };
  // What is left to do without the lock.
  struct Leftovers {
    std::vector<std::shared_ptr<const SegmentMemory>> retired;
    std::vector<Waiter> ready;
  };
  class Handle;

  void drop_handle(std::uint64_t segment);
  [[nodiscard]] Result<Placement> place_and_make(std::uint64_t size);
  void add_waiter(Waiter waiter);
  // Follows the events of the ledger and calls the callbacks that became ready. Releases the lock.
  void settle(Lock lock);
  void follow(const SegmentEvent& event, Leftovers& leftovers);
  [[nodiscard]] bool lendable(const BufferIdentity& identity, std::uint32_t reader) const;
  // Returns a connected reader, or null if it was dropped.
  [[nodiscard]] Reader* find(ReaderKey key);
  void notify(const ReaderNotice& notice);

  const SegmentPoolOptions options_;
  mutable std::mutex mutex_;  // guards everything below
  SegmentLedger ledger_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const SegmentMemory>> memory_;
  std::map<std::uint32_t, Reader> readers_;  // by number
  std::vector<Waiter> waiters_;
  bool callbacks_stopped_ = false;
  std::size_t callbacks_running_ = 0;
  std::condition_variable callbacks_done_;
  std::vector<ReaderNotice> notices_;
  std::function<void()> wake_;
};

}  // namespace tidemill::transport
