// SPDX-License-Identifier: Apache-2.0
// Reads the stages of a tokenizer.json before and after the model.
#pragma once

#include "base/result.hpp"
#include "engines/tokenizer/json_node.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {

/// Read "normalizer", "pre_tokenizer" and "decoder" of the object `top`. The pre-tokenizer decides
/// the alphabet of the vocabulary, and must be read before the decoder.
/// Errors: `kCorruptData`, `kUnimplemented`; messages begin with the field.
[[nodiscard]] Status read_normalizer(const JsonNode& top, TokenizerSpec& spec);
[[nodiscard]] Status read_pre_tokenizer(const JsonNode& top, TokenizerSpec& spec);
[[nodiscard]] Status read_decoder(const JsonNode& top, TokenizerSpec& spec);

/// Checks a ByteLevel decoder or post-processor, which have no options that change ids or text.
[[nodiscard]] Status check_byte_level(const JsonNode& node);

}  // namespace tidemill::engines
