// SPDX-License-Identifier: Apache-2.0
// The alphabet in which byte-level vocabularies are written: one printable character per byte.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tidemill::engines {

/// Returns the character that stands for `byte`: printable bytes (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF)
/// stand for themselves, the other 68 become U+0100 upward in byte order.
/// Source: Radford et al. 2019 (GPT-2), byte-level vocabulary.
[[nodiscard]] char32_t byte_alphabet_character(unsigned char byte) noexcept;

/// Returns the bytes that `token` spells in the alphabet, or nothing if it has any other character.
/// Requires valid UTF-8.
[[nodiscard]] std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace tidemill::engines
