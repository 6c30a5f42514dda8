// SPDX-License-Identifier: Apache-2.0
// The checksum of event files.
#pragma once

#include <cstdint>
#include <string_view>

namespace tidemill::storage {

/// Returns the CRC-32C of `bytes`.
/// Source: RFC 3720, section 12.1 (Castagnoli's polynomial, reflected) and appendix B.4 (examples).
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;

}  // namespace tidemill::storage
