// SPDX-License-Identifier: Apache-2.0
// Makes frames of messages that `write_envelope` would not write.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/digest.hpp"

namespace tidemill::transport {

/// Returns the frame of a message: its checksum and itself.
inline Buffer framed(std::span<const std::byte> message) {
  const std::uint64_t checksum = digest_key(message).low;
  std::vector<std::byte> frame(sizeof(checksum) + message.size());
  std::memcpy(frame.data(), &checksum, sizeof(checksum));
  std::ranges::copy(message, frame.begin() + sizeof(checksum));
  return Buffer::adopt(std::move(frame), DType::kU8);
}

}  // namespace tidemill::transport
