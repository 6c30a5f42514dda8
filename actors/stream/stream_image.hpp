// SPDX-License-Identifier: Apache-2.0
// Encodes a captured stream as an image and decodes it again.
#pragma once

#include "actors/stream/spawn.hpp"
#include "base/result.hpp"
#include "storage/stream/stream_table.hpp"

namespace tidemill::actors {

/// A decoded image.
struct DecodedImage {
  StreamOrigin origin;
  storage::StreamSnapshot snapshot;
};

/// Returns a capture of the current state of `stream`. Copies handles, not bytes.
[[nodiscard]] StreamCapture capture_stream_table(const storage::StreamTable& stream,
                                                 std::uint64_t next_group, std::uint64_t next_draw);

/// Returns the image of a captured stream. Copies the bytes of all cells, so an actor calls it at a
/// port.
[[nodiscard]] StreamImage encode_stream_image(StreamCapture capture);

/// Decodes an image that is not empty.
/// Errors: `kCorruptData`.
[[nodiscard]] Result<DecodedImage> decode_stream_image(const StreamImage& image);

}  // namespace tidemill::actors
