// SPDX-License-Identifier: Apache-2.0
// A stream as bytes and back; private to the stream actor.
#pragma once

#include "actors/stream/spawn.hpp"
#include "base/result.hpp"
#include "storage/stream/stream.hpp"

namespace tidemill::actors {

/// An image, read.
struct DecodedImage {
  StreamOrigin origin;
  storage::StreamSnapshot snapshot;
};

/// Writes a stream as a checkpoint keeps it.
[[nodiscard]] StreamImage encode_stream_image(const storage::Stream& stream,
                                              std::uint64_t next_group, std::uint64_t next_draw);

/// Reads an image that is not empty.
/// Errors: `kCorruptData`.
[[nodiscard]] Result<DecodedImage> decode_stream_image(const StreamImage& image);

}  // namespace tidemill::actors
