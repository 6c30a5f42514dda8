// SPDX-License-Identifier: Apache-2.0
// Captures a stream and encodes the capture as an image. `decode_stream_image` is in spawn.hpp.
#pragma once

#include "actors/stream/spawn.hpp"
#include "storage/stream/stream_table.hpp"

namespace tidemill::actors {

/// Returns a capture of the current state of `stream`. Copies handles, not bytes.
[[nodiscard]] StreamCapture capture_stream_table(const storage::StreamTable& stream,
                                                 std::uint64_t next_group, std::uint64_t next_draw);

/// Returns the image of a captured stream. Copies the bytes of all cells, so an actor calls it at a
/// port.
[[nodiscard]] StreamImage encode_stream_image(StreamCapture capture);

}  // namespace tidemill::actors
