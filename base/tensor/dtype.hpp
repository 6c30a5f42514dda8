// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and the conversions between the 16-bit floats and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tidemill {

/// Element types of tensors. A safetensors file can hold all of them except `kBlockI8` and `kNf4`.
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
  /// Block int8: 32 consecutive elements of a row share a scale. `BlockI8` is its layout.
  kBlockI8,
  /// 4-bit NormalFloat with double quantization; base/tensor/block_nf4.hpp describes its layout.
  kNf4
};
/// The type with the largest value.
inline constexpr DType kLastDType = DType::kNf4;

/// Returns how many consecutive elements of a row form one block: 32 for kBlockI8, 64 for kNf4, and
/// 1 for all other types.
[[nodiscard]] std::size_t dtype_block_elements(DType dtype) noexcept;
/// Returns the size in bytes of one block or, for a type without blocks, of one element. Excludes
/// the data that all blocks of a kNf4 tensor share.
[[nodiscard]] std::size_t dtype_block_bytes(DType dtype) noexcept;
/// Returns the size of one element in bytes. Requires a type without blocks.
[[nodiscard]] std::size_t dtype_bytes(DType dtype) noexcept;
/// Returns the type's name: that of safetensors, such as "BF16", and for types that safetensors
/// lacks, "Q8_0" (GGUF's name) or "NF4".
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;
/// Returns the type with the safetensors name `name`, or nothing if it is not supported. "Q8_0" and
/// "NF4" are not safetensors names.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name) noexcept;

/// Widens bfloat16 bits to float, exactly.
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

/// Widens the bits of an IEEE half to float, exactly.
[[nodiscard]] float f16_to_float(std::uint16_t bits) noexcept;
/// Rounds to the nearest IEEE half, ties to even; overflow gives infinity.
[[nodiscard]] std::uint16_t float_to_f16(float value) noexcept;

}  // namespace tidemill
