// SPDX-License-Identifier: Apache-2.0
// Block int8: 32 consecutive weights of a row as integers that share a scale. This is GGUF's Q8_0,
// and the format that this project quantizes to.
//
// An element is scale * value. The scale has 11 significant bits and the value 8, so the product is
// exact in float32 and widening such a tensor loses nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill {

/// One block as stored in memory and in files: 34 bytes, little-endian.
struct BlockI8 {
  static constexpr std::size_t kElements = 32;
  std::uint16_t scale = 0;  // an IEEE half
  std::array<std::int8_t, kElements> values{};
};
static_assert(sizeof(BlockI8) == 34 && alignof(BlockI8) == 2);

/// Returns element `index` of a row of blocks, exactly.
[[nodiscard]] inline float block_element(const BlockI8* row, std::int64_t index) noexcept {
  constexpr std::int64_t kElements = BlockI8::kElements;
  const BlockI8& block = row[index / kElements];
  return f16_to_float(block.scale) *
         static_cast<float>(block.values[static_cast<std::size_t>(index % kElements)]);
}

/// Quantizes 32 elements to one block by the formula of `quantize_blocks`. Requires a scale that
/// fits in a half-precision float.
[[nodiscard]] BlockI8 quantize_block(std::span<const float, BlockI8::kElements> x) noexcept;

/// Returns `tensor` (kF32, kF16 or kBF16; its last extent a multiple of 32) quantized to kBlockI8.
///
/// For each 32 consecutive elements x of a row, in float32: d = max|x| / 127, and value =
/// x * (1 / d) rounded to the nearest integer, halves away from zero. All values are 0 if d is 0 or
/// so small that 1 / d overflows. The stored scale is d rounded to a half, so an element is off by
/// at most d / 2 + 127 |half(d) - d|.
/// Source: ggml-org/ggml, the definition of Q8_0 (`quantize_row_q8_0_ref` in ggml-quants.c).
/// Errors: `kInvalidArgument` naming the tensor `name`: another type; rows that cannot be split
/// into blocks; NaN or infinity, naming the element; a magnitude whose scale does not fit in a half
/// (8,321,000 or more), naming the block.
[[nodiscard]] Result<Tensor> quantize_blocks(const Tensor& tensor, const std::string& name);

}  // namespace tidemill
