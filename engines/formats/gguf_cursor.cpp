// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/gguf_cursor.hpp"

#include <algorithm>

#include "base/text/utf8.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 10U;

}  // namespace

Status GgufCursor::check(std::uint64_t count) const {
  if (count > remaining()) {
    return corrupt_data("byte " + std::to_string(position_) + ": needs " + std::to_string(count) +
                        " bytes, but only " + std::to_string(remaining()) + " remain");
  }
  if (count > limit_ - position_) {
    return invalid_argument("byte " + std::to_string(position_) +
                            ": the header exceeds the limit of " + std::to_string(limit_) +
                            " bytes");
  }
  return {};
}

Status GgufCursor::read(std::span<std::byte> out) {
  TIDEMILL_RETURN_IF_ERROR(check(out.size()));
  while (!out.empty()) {
    if (position_ < piece_begin_ || position_ >= piece_begin_ + piece_.size()) {
      piece_.resize(static_cast<std::size_t>(std::min(kPieceBytes, remaining())));
      piece_begin_ = position_;
      TIDEMILL_RETURN_IF_ERROR(file_.read_at(position_, piece_));
    }
    const auto rest = std::span(piece_).subspan(static_cast<std::size_t>(position_ - piece_begin_));
    const std::size_t count = std::min(rest.size(), out.size());
    std::copy_n(rest.begin(), count, out.begin());
    out = out.subspan(count);
    position_ += count;
  }
  return {};
}

Status GgufCursor::skip(std::uint64_t count) {
  TIDEMILL_RETURN_IF_ERROR(check(count));
  position_ += count;
  return {};
}

Result<std::string> GgufCursor::string(std::uint64_t max_bytes) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto size, number<std::uint64_t>());
  TIDEMILL_RETURN_IF_ERROR(check(std::min(size, remaining() + 1)));
  if (size > max_bytes) {
    return invalid_argument("a string of " + std::to_string(size) + " bytes; at most " +
                            std::to_string(max_bytes) + " are read");
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  TIDEMILL_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(text))));
  if (const auto bad = find_invalid_utf8(text)) {
    return corrupt_data("a string with invalid UTF-8 at byte " + std::to_string(*bad));
  }
  return text;
}

}  // namespace tidemill::engines
