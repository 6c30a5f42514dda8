// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/dtype.hpp"

#include <array>

#include "base/check.hpp"

namespace tidemill {
namespace {

struct Row {
  DType dtype;
  std::size_t bytes;  // of a block
  std::string_view name;
  std::size_t block = 1;  // elements
};

constexpr std::array<Row, 15> kRows{{
    {DType::kBool, 1, "BOOL"},
    {DType::kU8, 1, "U8"},
    {DType::kI8, 1, "I8"},
    {DType::kI16, 2, "I16"},
    {DType::kU16, 2, "U16"},
    {DType::kF16, 2, "F16"},
    {DType::kBF16, 2, "BF16"},
    {DType::kI32, 4, "I32"},
    {DType::kU32, 4, "U32"},
    {DType::kF32, 4, "F32"},
    {DType::kF64, 8, "F64"},
    {DType::kI64, 8, "I64"},
    {DType::kU64, 8, "U64"},
    {DType::kBlockI8, 34, "Q8_0", 32},
    {DType::kNf4, 33, "NF4", 64},
}};

const Row& row(DType dtype) {
  return kRows.at(static_cast<std::size_t>(dtype));
}

}  // namespace

std::size_t dtype_block_elements(DType dtype) noexcept {
  return row(dtype).block;
}

std::size_t dtype_block_bytes(DType dtype) noexcept {
  return row(dtype).bytes;
}

std::size_t dtype_bytes(DType dtype) noexcept {
  TIDEMILL_CHECK(row(dtype).block == 1) << dtype_name(dtype);
  return row(dtype).bytes;
}

std::string_view dtype_name(DType dtype) noexcept {
  return row(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (const Row& candidate : kRows) {
    if (candidate.name == name && candidate.block == 1) {
      return candidate.dtype;
    }
  }
  return std::nullopt;
}

float f16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits} >> 15U << 31U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

std::uint16_t float_to_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 31U << 15U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U);
  }
  if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude < 0x38800000U) {  // below the smallest normal half: let float addition round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U);
  return static_cast<std::uint16_t>(sign | (rounded >> 13U));
}

}  // namespace tidemill
