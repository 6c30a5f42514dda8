// SPDX-License-Identifier: Apache-2.0
// What every connection checks before it sends.
#pragma once

#include <string>

#include "base/buffer.hpp"
#include "base/check.hpp"
#include "base/status.hpp"
#include "transport/envelope.hpp"

namespace tidemill::transport {

/// Checks that a frame may be sent. Requires a resolved buffer. Errors: as `Connection::send`, if
/// the frame is too large.
[[nodiscard]] inline Status check_frame_size(const Buffer& frame) {
  TIDEMILL_CHECK(frame.resolved()) << to_string(frame.identity());
  if (frame.size_bytes() <= kMaxEnvelopeBytes) {
    return {};
  }
  return invalid_argument("connection: a frame of " + std::to_string(frame.size_bytes()) +
                          " bytes is too large (at most " + std::to_string(kMaxEnvelopeBytes) +
                          ")");
}

}  // namespace tidemill::transport
