// SPDX-License-Identifier: Apache-2.0
// Block int8: 32 weights of a row as whole numbers that share a scale. Both GGUF's Q8_0 and what
// this project quantises to.
//
// An element is scale * value. The scale has 11 significant bits and the value 8, so that the
// product is exact in float32: widening such a tensor loses nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"

namespace tidemill {

/// One block as it lies in memory and in files: 34 bytes, low byte first.
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

/// Returns 32 elements as one block, by the formula below; none may be beyond what a half scale can
/// hold.
[[nodiscard]] BlockI8 quantize_block(std::span<const float, BlockI8::kElements> x) noexcept;

/// Returns `tensor` (kF32, kF16 or kBF16; its last extent a multiple of 32) as kBlockI8.
///
/// For each 32 consecutive elements x of a row, in float32: d = max|x| / 127, value = x * (1 / d)
/// rounded to the nearest integer, halves away from zero; all 0 where d = 0. Stored is d rounded to
/// a half, so that an element differs by at most d / 2 + 127 |half(d) - d|.
/// Source: ggml-org/ggml, the definition of Q8_0 (`quantize_row_q8_0_ref` in ggml-quants.c).
/// Errors: `kInvalidArgument` naming the tensor `name` and the element: NaN, infinity, a magnitude
/// whose scale no half can hold (from 8,321,000 on); a shape that cannot be cut into blocks.
[[nodiscard]] Result<Tensor> quantize_blocks(const Tensor& tensor, const std::string& name);

}  // namespace tidemill
