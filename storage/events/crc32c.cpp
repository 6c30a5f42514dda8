// SPDX-License-Identifier: Apache-2.0
#include "storage/events/crc32c.hpp"

#include <array>

namespace tidemill::storage {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;  // 0x1EDC6F41, reflected

// The effect of each byte on a checksum.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1U) ^ ((rest & 1U) != 0 ? kPolynomial : 0U);
    }
    table.at(byte) = rest;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t rest = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    rest = (rest >> 8U) ^ kTable[(rest ^ static_cast<std::uint8_t>(byte)) & 0xFFU];
  }
  return rest ^ 0xFFFFFFFFU;
}

}  // namespace tidemill::storage
