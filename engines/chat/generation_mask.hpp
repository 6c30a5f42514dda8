// SPDX-License-Identifier: Apache-2.0
// Converts the generation blocks of a rendered chat to a mask of the tokens to train on.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engines/chat/rendering.hpp"
#include "engines/tokenizer/encoding.hpp"

namespace tidemill::engines::chat {

/// Returns one number per token: 1 if the token covers any character of a span, else 0.
///
/// Shapes: one entry per id of `encoding`, which must be an encoding of `text` with spans.
[[nodiscard]] std::vector<std::uint8_t> generation_mask(std::string_view text,
                                                        std::span<const CodePointSpan> spans,
                                                        const Encoding& encoding);

}  // namespace tidemill::engines::chat
