// SPDX-License-Identifier: Apache-2.0
// How vocabularies spell bytes: with one printable character per byte, or as "<0x0A>".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tidemill::engines {

/// Returns the character that represents `byte`. Printable bytes (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF)
/// represent themselves. The other 68 bytes map to U+0100 and up, in byte order.
/// Source: Radford et al. 2019 (GPT-2), byte-level vocabulary.
[[nodiscard]] char32_t byte_alphabet_character(unsigned char byte) noexcept;

/// Returns the bytes that `token` represents in the alphabet, or nullopt if it contains any other
/// character. Requires valid UTF-8.
[[nodiscard]] std::optional<std::string> bytes_of_token(std::string_view token);

/// Returns the token that represents `byte` in a vocabulary with byte fallback, e.g. "<0x0A>".
[[nodiscard]] std::string byte_token(unsigned char byte);

/// Returns the byte that a token like "<0x0A>" represents, or nullopt. As in the reference
/// implementation, digits may be lowercase, and the first one may be "+".
[[nodiscard]] std::optional<char> byte_of_token(std::string_view token);

}  // namespace tidemill::engines
