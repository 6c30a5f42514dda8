// SPDX-License-Identifier: Apache-2.0
// Reading the header of a GGUF file, value by value.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

static_assert(std::endian::native == std::endian::little, "files are read as they are");

/// A place in a file that only goes forward.
///
/// Reads a piece at a time into memory of its own: what somebody cuts off meanwhile is an error.
/// Errors, of all reads: `kCorruptData` where the file ends; `kInvalidArgument` beyond the limit;
/// `kUnavailable`.
class GgufCursor {
public:
  /// Borrows `file`; at most `limit` bytes of it are read.
  GgufCursor(const ReadableFile& file, std::uint64_t limit) : file_(file), limit_(limit) {}

  /// Returns the offset of the next byte.
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  /// Returns how many bytes of the file follow.
  [[nodiscard]] std::uint64_t remaining() const noexcept { return file_.size_bytes() - position_; }

  /// Fills `out`.
  [[nodiscard]] Status read(std::span<std::byte> out);
  /// Passes over `count` bytes.
  [[nodiscard]] Status skip(std::uint64_t count);

  /// Reads a number or an enumeration's.
  template <class T>
  [[nodiscard]] Result<T> number() {
    T value{};
    TIDEMILL_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }

  /// Reads a string of at most `max_bytes` in UTF-8.
  [[nodiscard]] Result<std::string> string(std::uint64_t max_bytes);

private:
  [[nodiscard]] Status check(std::uint64_t count) const;

  const ReadableFile& file_;
  std::uint64_t limit_;
  std::uint64_t position_ = 0;
  std::vector<std::byte> piece_;
  std::uint64_t piece_begin_ = 0;
};

}  // namespace tidemill::engines
