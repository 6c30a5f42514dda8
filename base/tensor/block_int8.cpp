// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/block_int8.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/tensor/float_tensor.hpp"

namespace tidemill {
namespace {

constexpr float kMaxValue = 127.0F;
// The smallest scale that rounds to infinity as a half.
constexpr float kTooWide = 65520.0F;
// A tensor is widened in pieces of this many blocks, 4 MiB of floats.
constexpr std::size_t kPieceBlocks = std::size_t{1} << 15U;

// `x` has BlockI8::kElements elements.
float scale_of(std::span<const float> x) {
  float peak = 0.0F;
  for (const float value : x) {
    peak = std::max(peak, std::abs(value));
  }
  return peak / kMaxValue;
}

BlockI8 block_of(std::span<const float> x, float scale) {
  // A scale so small that its inverse overflows rounds to 0 as a half.
  const float inverse = std::isfinite(1.0F / scale) ? 1.0F / scale : 0.0F;
  BlockI8 block;
  block.scale = float_to_f16(scale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    block.values[i] =
        static_cast<std::int8_t>(std::clamp(std::round(x[i] * inverse), -kMaxValue, kMaxValue));
  }
  return block;
}

// Widens the elements from `begin` on to `out`, and drops their pages if they are in a mapped file.
void widen_piece(const Tensor& tensor, std::size_t begin, std::span<float> out) {
  const std::size_t width = dtype_block_bytes(tensor.dtype);
  const Tensor piece{tensor.dtype,
                     {std::ssize(out)},
                     tensor.data.slice(begin * width, out.size() * width, tensor.dtype)};
  widen_floats(piece, out);
  piece.data.release_pages();
}

}  // namespace

BlockI8 quantize_block(std::span<const float, BlockI8::kElements> x) noexcept {
  return block_of(x, scale_of(x));
}

Result<Tensor> quantize_blocks(const Tensor& tensor, const std::string& name) {
  const std::string location = "tensor " + name;
  if (!is_float_type(tensor.dtype)) {
    return invalid_argument(location + ": type " + std::string(dtype_name(tensor.dtype)) +
                            " cannot be quantized; only F32, F16 and BF16 can");
  }
  if (!tensor_bytes(DType::kBlockI8, tensor.shape).has_value()) {
    return invalid_argument(location + ": rows of " +
                            std::to_string(tensor.shape.empty() ? 1 : tensor.shape.back()) +
                            " elements cannot be cut into blocks of 32");
  }
  TIDEMILL_RETURN_IF_ERROR(check_finite(tensor).with_context(location));
  const auto num_blocks = static_cast<std::size_t>(tensor.num_elements()) / BlockI8::kElements;
  std::vector<BlockI8> blocks(num_blocks);
  std::vector<float> values(std::min(num_blocks, kPieceBlocks) * BlockI8::kElements);
  for (std::size_t begin = 0; begin < num_blocks; begin += kPieceBlocks) {
    const std::size_t count = std::min(num_blocks - begin, kPieceBlocks);
    widen_piece(tensor, begin * BlockI8::kElements,
                std::span(values).first(count * BlockI8::kElements));
    for (std::size_t i = 0; i < count; ++i) {
      const auto x = std::span(values).subspan(i * BlockI8::kElements, BlockI8::kElements);
      const float scale = scale_of(x);
      if (scale >= kTooWide) {
        return invalid_argument(location + ": block " + std::to_string(begin + i) + " holds " +
                                std::to_string(scale * kMaxValue) +
                                "; its scale does not fit in a half-precision float");
      }
      blocks[begin + i] = block_of(x, scale);
    }
  }
  return Tensor{DType::kBlockI8, tensor.shape, Buffer::adopt(std::move(blocks), DType::kBlockI8)};
}

}  // namespace tidemill
