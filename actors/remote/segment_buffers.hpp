// SPDX-License-Identifier: Apache-2.0
// Buffers that cross between the processes of a host in segments of shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "actors/remote/buffer_exchange.hpp"
#include "actors/wire/messages.hpp"
#include "base/buffer.hpp"
#include "base/result.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_reader.hpp"

namespace tidemill::actors {

/// Copies buffers into a pool, each once. All lenders of the pool share it.
///
/// A copy ends with the last handle to it, so the holders of handles decide how long it is used
/// again. A buffer that is in the pool already is not copied.
/// Threads: safe to call concurrently. Copies are made one at a time.
class SegmentCopies {
public:
  /// The pool must outlive this.
  explicit SegmentCopies(transport::SegmentPool& pool) : pool_(pool) {}
  SegmentCopies(const SegmentCopies&) = delete;
  SegmentCopies& operator=(const SegmentCopies&) = delete;

  [[nodiscard]] transport::SegmentPool& pool() noexcept { return pool_; }

  /// Returns `buffer` if it is in the pool, or otherwise a copy. Requires a resolved buffer.
  /// Errors: `kResourceExhausted` if the pool has no room; those of `Buffer::copy_to`.
  [[nodiscard]] Result<Buffer> copy_of(const Buffer& buffer);

  /// Returns how many buffers have been copied so far.
  [[nodiscard]] std::uint64_t num_copied() const;

private:
  // Pool, segment, generation, offset, length. A pool never gives two buffers the same.
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t, std::uint64_t>;

  transport::SegmentPool& pool_;
  mutable std::mutex mutex_;                           // of all below
  std::map<Key, std::weak_ptr<const Buffer>> copies_;  // by the identity of what was copied
  std::size_t purge_at_ = 0;  // with so many entries, those of copies that have ended are erased
  std::uint64_t num_copied_ = 0;
};

/// Lends buffers to the reader of the pool with this number. A device that changes its weights may
/// hold three snapshots for a while: the one that it serves, one that it has accepted, and the
/// next. `SegmentReaderGrant::max_lent_bytes` has to allow them.
[[nodiscard]] std::shared_ptr<BufferLender> make_segment_lender(
    std::shared_ptr<SegmentCopies> copies, std::uint32_t reader);

/// Returns the options of a reader at this address.
[[nodiscard]] transport::SegmentReaderOptions reader_options(const SegmentAddress& address);

/// Resolves the buffers of the pool that `reader` reads.
[[nodiscard]] std::shared_ptr<BufferResolver> make_segment_resolver(
    std::shared_ptr<transport::SegmentReader> reader);

}  // namespace tidemill::actors
