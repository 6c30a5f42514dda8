// SPDX-License-Identifier: Apache-2.0
// Encodes a stream as an image and decodes it again. Private to the stream actor.
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

/// Returns the image of a stream, in the form in which a checkpoint stores it.
[[nodiscard]] StreamImage encode_stream_image(const storage::StreamTable& stream,
                                              std::uint64_t next_group, std::uint64_t next_draw);

/// Decodes an image that is not empty.
/// Errors: `kCorruptData`.
[[nodiscard]] Result<DecodedImage> decode_stream_image(const StreamImage& image);

}  // namespace tidemill::actors
