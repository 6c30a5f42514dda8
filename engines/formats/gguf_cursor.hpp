// SPDX-License-Identifier: Apache-2.0
// Reads the header of a GGUF file value by value.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

static_assert(std::endian::native == std::endian::little, "numbers are read without conversion");

/// A cursor that moves forward through a file.
///
/// It reads the file in pieces into its own buffer. If another process truncates the file
/// meanwhile, a read fails.
/// Errors of all reads: `kCorruptData` at the end of the file; `kInvalidArgument` beyond the limit;
/// `kUnavailable`.
class GgufCursor {
public:
  /// Borrows `file`. At most its first `limit` bytes are read.
  GgufCursor(const ReadableFile& file, std::uint64_t limit) : file_(file), limit_(limit) {}

  /// Returns the offset of the next byte.
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  /// Returns the number of bytes from the position to the end of the file.
  [[nodiscard]] std::uint64_t remaining() const noexcept { return file_.size_bytes() - position_; }

  /// Fills `out`.
  [[nodiscard]] Status read(std::span<std::byte> out);
  /// Skips `count` bytes.
  [[nodiscard]] Status skip(std::uint64_t count);

  /// Reads a number or an enumerator.
  template <class T>
  [[nodiscard]] Result<T> number() {
    T value{};
    TIDEMILL_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }

  /// Reads a UTF-8 string of at most `max_bytes`.
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
