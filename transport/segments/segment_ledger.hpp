// SPDX-License-Identifier: Apache-2.0
// Private to transport/segments. The bookkeeping of a segment pool: a state machine without memory,
// sockets and locks.
//
// The states of a segment, and the event that causes each transition:
//   kMaking   `place` has reserved its bytes, and its memory is being made.
//               `made`: -> kUsed. `abandon`: the segment ends.
//   kUsed     the program of the pool has handles to its buffers, or readers have loans of them.
//               The last handle is dropped and the last loan returned: -> kFree, with the next
//               generation.
//   kFree     nothing refers to its buffers; its memory is kept.
//               `place` takes it: -> kUsed. The free segments exceed their limit, or their bytes
//               are needed: -> kRetired.
//   kRetired  the pool has given its memory back, but readers still map it.
//               The last of them has unmapped it: the segment ends.
// Numbers of segments are never used again.
//
// A loan is the permission of one reader to resolve one buffer once. Loans are counted per segment
// and reader, so returning any number of them is one entry of a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/segments/segment_pool.hpp"

namespace tidemill::transport {

/// Buffers in a shared segment start at multiples of this, a cache line. Units: bytes.
inline constexpr std::uint64_t kBufferAlignment = 64;

/// The number of segments that a pool has at most. Each one needs a descriptor and a mapping.
inline constexpr std::size_t kMaxSegments = 16'384;

/// A buffer of at most this fraction of a shared segment is placed in one.
inline constexpr std::uint64_t kSharedFraction = 8;

/// Names a reader from `add_reader` to `drop_reader`. Never used again.
using ReaderKey = std::uint64_t;

/// Where a new buffer is.
struct Placement {
  std::uint64_t segment = 0;
  std::uint32_t generation = 0;
  std::uint64_t offset = 0;    // bytes
  std::uint64_t capacity = 0;  // bytes of the segment
  bool make = false;           // the caller makes the memory, then calls `made` or `abandon`
};

/// What the pool has to do with the memory of a segment.
struct SegmentEvent {
  /// kRecycled: the segment is free and has a new generation, without loans. kRetired: its memory
  /// has to be given back, here and in `readers`. It is the last event of a segment.
  enum class Kind : std::uint8_t { kRecycled, kRetired };
  Kind kind = Kind::kRecycled;
  std::uint64_t segment = 0;
  std::uint32_t generation = 0;    // of kRecycled
  std::vector<ReaderKey> readers;  // of kRetired: those that have mapped the segment
};

/// Counts the segments, handles, loans and mappings of a pool. The caller takes the events after
/// each call.
///
/// Threads: one call at a time.
class SegmentLedger {
public:
  explicit SegmentLedger(const SegmentPoolOptions& options) : options_(options) {}

  // -- buffers
  // -------------------------------------------------------------------------------------

  /// Chooses where a new buffer of `size` bytes is, and counts one handle to it.
  /// Errors: `kResourceExhausted`.
  [[nodiscard]] Result<Placement> place(std::uint64_t size);
  /// Returns whether `place` would succeed. Retires free segments if that makes it possible.
  [[nodiscard]] bool make_room(std::uint64_t size);
  /// Returns whether a buffer of `size` bytes fits into an empty pool.
  [[nodiscard]] bool can_ever_place(std::uint64_t size) const;
  /// The memory of a placement with `make` exists.
  void made(const Placement& placement);
  /// The memory of a placement with `make` could not be made.
  void abandon(const Placement& placement);
  /// The last handle of the pool's program to one buffer of `segment` was dropped.
  void drop_handle(std::uint64_t segment);

  // -- readers
  // -------------------------------------------------------------------------------------

  /// Adds a reader, which may keep at most `max_lent_bytes` from being used again.
  ReaderKey add_reader(std::uint64_t max_lent_bytes);
  /// Drops the loans and mappings of a reader, and forgets it.
  void drop_reader(ReaderKey reader);
  /// Counts a loan. Returns how many loans of this generation of the segment the reader was given.
  /// Requires that the segment is in use.
  /// Errors: `kResourceExhausted` if the reader may not keep that many bytes; `kInvalidArgument` if
  /// the segment alone is larger than that.
  [[nodiscard]] Result<std::uint32_t> lend(ReaderKey reader, std::uint64_t segment);
  /// Returns whether `lend` would not fail with `kResourceExhausted`.
  [[nodiscard]] bool can_lend(ReaderKey reader, std::uint64_t segment) const;
  /// Undoes a loan that the reader does not know. Returns how many loans of this generation remain
  /// given. Requires such a loan.
  std::uint32_t take_back(ReaderKey reader, std::uint64_t segment);
  /// The reader returns `count` loans.
  /// Errors: `kInvalidArgument` if it does not hold that many; then nothing changes.
  [[nodiscard]] Status give_back(ReaderKey reader, std::uint64_t segment, std::uint32_t generation,
                                 std::uint32_t count);
  /// The reader asks for the memory of a segment, and maps it.
  /// Errors: `kNotFound` if it holds no loan of it; `kInvalidArgument` if it has mapped it already.
  [[nodiscard]] Status map(ReaderKey reader, std::uint64_t segment);
  /// The reader has unmapped a segment.
  /// Errors: `kInvalidArgument` if it had not mapped it.
  [[nodiscard]] Status unmap(ReaderKey reader, std::uint64_t segment);

  // -- state
  // ---------------------------------------------------------------------------------------

  /// Returns whether the buffers of this generation of a segment are in use.
  [[nodiscard]] bool in_use(std::uint64_t segment, std::uint32_t generation) const;
  [[nodiscard]] std::vector<SegmentEvent> take_events() { return std::exchange(events_, {}); }
  [[nodiscard]] const SegmentPoolUse& use() const noexcept { return use_; }
  [[nodiscard]] std::uint64_t lent_bytes(ReaderKey reader) const {
    return readers_.at(reader).lent_bytes;
  }

private:
  enum class State : std::uint8_t { kMaking, kUsed, kFree, kRetired };
  // The loans of one generation of a segment to one reader.
  struct Loans {
    std::uint32_t lent = 0;
    std::uint32_t returned = 0;
  };
  struct Segment {
    std::uint64_t capacity = 0;
    State state = State::kMaking;
    std::uint32_t generation = 0;
    std::uint64_t placed_bytes = 0;       // where the next buffer of a shared segment starts
    std::uint64_t handles = 0;            // buffers to which the pool's program has handles
    std::uint64_t loans = 0;              // not returned
    std::uint64_t freed_at = 0;           // of kFree: the number of the event
    std::map<ReaderKey, Loans> loans_of;  // of this generation
    std::set<ReaderKey> mapped_by;
  };
  struct Reader {
    std::uint64_t max_lent_bytes = 0;
    std::uint64_t lent_bytes = 0;
    std::set<std::uint64_t> segments;  // of which it holds loans
    std::set<std::uint64_t> mapped;
  };
  using FreeKey = std::pair<std::uint64_t, std::uint64_t>;  // capacity, freed_at

  // The segment for a buffer: its capacity, and whether other buffers share it.
  struct Fit {
    std::uint64_t capacity = 0;
    bool shared = false;
  };

  [[nodiscard]] Fit fit_of(std::uint64_t size) const;
  [[nodiscard]] bool fits_into_open(std::uint64_t size) const;
  // The segment that was freed last among those of `capacity` bytes.
  [[nodiscard]] std::optional<std::uint64_t> find_free(std::uint64_t capacity) const;
  [[nodiscard]] bool make_room_for_segment(std::uint64_t capacity);
  [[nodiscard]] Status no_room(std::uint64_t capacity) const;
  Placement use_segment(std::uint64_t number, std::uint64_t size, const Fit& fit);
  void remove_free(const Segment& segment);
  // Stops counting the segment for the reader if it has returned all loans of it.
  void forget_if_returned(std::uint64_t number, ReaderKey reader);
  void return_loans(std::uint64_t number, ReaderKey reader, std::uint32_t count);
  void free_if_unused(std::uint64_t number);
  void retire(std::uint64_t number);
  void end_if_unmapped(std::uint64_t number);

  SegmentPoolOptions options_;
  SegmentPoolUse use_;
  std::uint64_t last_segment_ = 0;
  std::uint64_t last_freed_ = 0;
  ReaderKey last_reader_ = 0;
  std::uint64_t open_ = 0;  // the shared segment that takes small buffers, or 0
  std::unordered_map<std::uint64_t, Segment> segments_;
  std::map<ReaderKey, Reader> readers_;
  std::map<FreeKey, std::uint64_t> free_by_size_;
  std::map<std::uint64_t, std::uint64_t> free_by_age_;
  std::vector<SegmentEvent> events_;
};

}  // namespace tidemill::transport
