// SPDX-License-Identifier: Apache-2.0
// From the generation blocks of a rendered chat to the tokens a model is trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engines/chat/interpreter.hpp"
#include "engines/tokenizer/encoding.hpp"

namespace tidemill::engines::chat {

/// Returns one number per token: 1 if it stands for any character of a span, else 0.
///
/// Shapes: one entry per id of `encoding`, which must come from encoding `text` with spans.
[[nodiscard]] std::vector<std::uint8_t> generation_mask(std::string_view text,
                                                        std::span<const CodePointSpan> spans,
                                                        const Encoding& encoding);

}  // namespace tidemill::engines::chat
