// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and the conversions between the 16-bit floats and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tidemill {

/// Element types of tensors. All but `kBlockI8` and `kNf4` may stand in a safetensors file.
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  /// Block int8: 32 consecutive elements of a row share a scale. The layout is `BlockI8`'s.
  kBlockI8,
  /// 4-bit NormalFloat, doubly quantised: see base/block_nf4.hpp.
  kNf4
};
/// The type with the largest value.
inline constexpr DType kLastDType = DType::kNf4;

/// Returns how many consecutive elements of a row are stored as one: 1, 32 for kBlockI8,
/// 64 for kNf4.
[[nodiscard]] std::size_t dtype_block_elements(DType dtype) noexcept;
/// Returns the size of what is stored as one, in bytes: an element, or a block. What blocks of kNf4
/// share comes on top.
[[nodiscard]] std::size_t dtype_block_bytes(DType dtype) noexcept;
/// Returns the size of one element in bytes. Requires a type without blocks.
[[nodiscard]] std::size_t dtype_bytes(DType dtype) noexcept;
/// Returns the name in tensor files: safetensors', e.g. "BF16", GGUF's "Q8_0", "NF4".
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;
/// Returns the type a safetensors name stands for, if it is one of ours. Q8_0 and NF4 are
/// none.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name) noexcept;

/// Widens bfloat16 bits; exact.
[[nodiscard]] inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

/// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
[[nodiscard]] inline std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Widens IEEE half bits; exact.
[[nodiscard]] float f16_to_float(std::uint16_t bits) noexcept;
/// Rounds to the nearest IEEE half, ties to even; overflow gives infinity.
[[nodiscard]] std::uint16_t float_to_f16(float value) noexcept;

}  // namespace tidemill
