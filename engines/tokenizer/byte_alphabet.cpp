// SPDX-License-Identifier: Apache-2.0
// The alphabet of byte-level vocabularies and its inverse are computed at compile time.
#include "engines/tokenizer/byte_alphabet.hpp"

#include <array>
#include <charconv>
#include <cstdint>

#include "base/text/utf8.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kNumBytes = 256;
constexpr char32_t kFirstUnprintable = 0x100;
constexpr std::size_t kNumCharacters = 0x100 + 68;

constexpr bool stands_for_itself(std::size_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<char32_t, kNumBytes> make_alphabet() {
  std::array<char32_t, kNumBytes> alphabet{};
  char32_t next = kFirstUnprintable;
  for (std::size_t byte = 0; byte < kNumBytes; ++byte) {
    alphabet[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return alphabet;
}

constexpr std::array<char32_t, kNumBytes> kAlphabet = make_alphabet();

// Returns the byte of each character below kNumCharacters, -1 for characters outside the alphabet.
constexpr std::array<std::int16_t, kNumCharacters> make_inverse() {
  std::array<std::int16_t, kNumCharacters> inverse{};
  for (auto& byte : inverse) {
    byte = -1;
  }
  for (std::size_t byte = 0; byte < kNumBytes; ++byte) {
    inverse[kAlphabet[byte]] = static_cast<std::int16_t>(byte);
  }
  return inverse;
}

constexpr std::array<std::int16_t, kNumCharacters> kInverse = make_inverse();
static_assert(kAlphabet[' '] == 0x120 && kInverse[0x143] == 0xAD);

}  // namespace

char32_t byte_alphabet_character(unsigned char byte) noexcept {
  return kAlphabet[byte];
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Step step = read_utf8(token, i);
    if (step.code_point >= kNumCharacters || kInverse[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kInverse[step.code_point]));
    i += step.length;
  }
  return bytes;
}

std::string byte_token(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string token = "<0x";
  token += kDigits[byte >> 4U];
  token += kDigits[byte & 0xFU];
  return token += '>';
}

std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
    return std::nullopt;
  }
  const char* begin = token.data() + (token[3] == '+' ? 4 : 3);
  const char* end = token.data() + 5;
  unsigned char value = 0;
  const auto parsed = std::from_chars(begin, end, value, 16);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(static_cast<char>(value))
                                                       : std::nullopt;
}

}  // namespace tidemill::engines
