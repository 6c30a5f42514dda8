// SPDX-License-Identifier: Apache-2.0
// Private to transport/segments. The memory of one segment: a sealed memfd and its mapping.
//
// The last page of a segment has one word for each reader: how many loans of which generation the
// reader was given. A reader looks there before it resolves a buffer, which needs neither a system
// call nor a message. One word holds both numbers, so they always belong together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/unique_fd.hpp"
#include "base/result.hpp"

namespace tidemill::transport {

/// The loans of one generation of a segment that one reader was given.
struct LoanWord {
  std::uint32_t generation = 0;
  std::uint32_t lent = 0;
};

/// The memory of a segment in one process, either of the pool or of a reader.
///
/// Threads: safe to use concurrently; writers of the bytes take care of each other.
class SegmentMemory {
public:
  /// Makes a segment of `capacity` bytes, a multiple of 4096, with all of its pages.
  /// Errors: `kResourceExhausted` naming the size.
  [[nodiscard]] static Result<SegmentMemory> make(std::uint64_t capacity);
  /// Maps a segment that another process has made, for reading, and closes `descriptor`.
  /// Errors: `kCorruptData` if it is not sealed, has another size or no whole pages;
  /// `kResourceExhausted`.
  [[nodiscard]] static Result<SegmentMemory> map(UniqueFd descriptor, std::uint64_t capacity);

  SegmentMemory(SegmentMemory&& other) noexcept;
  SegmentMemory& operator=(SegmentMemory&&) = delete;
  ~SegmentMemory();

  /// Returns the bytes of all buffers.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, capacity_}; }
  /// Returns the same bytes for writing. Requires memory from `make`.
  [[nodiscard]] std::span<std::byte> writable_bytes() const noexcept;
  /// Returns the descriptor of memory from `make`.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

  /// Returns the word of the reader with the index `index`. Whatever the writer wrote to the bytes
  /// before it set the word is visible afterwards.
  [[nodiscard]] LoanWord loan_word(std::size_t index) const noexcept;
  /// Sets the word of a reader. Requires memory from `make`.
  void set_loan_word(std::size_t index, LoanWord word) const noexcept;

private:
  SegmentMemory(UniqueFd descriptor, std::byte* data, std::uint64_t capacity) noexcept
      : descriptor_(std::move(descriptor)), data_(data), capacity_(capacity) {}

  UniqueFd descriptor_;  // closed if the memory is that of a reader
  std::byte* data_;
  std::uint64_t capacity_;
};

}  // namespace tidemill::transport
