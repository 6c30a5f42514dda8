// SPDX-License-Identifier: Apache-2.0
// 4-bit NormalFloat with double quantization, the format in which QLoRA keeps frozen weights and
// bitsandbytes stores them.
//
// The elements of a tensor, in row-major order, are split into blocks of 64. An element is its
// block's scale times one of 16 values in [-1, 1]. The scales are quantized too: their mean is
// subtracted, they are split into groups of 256, and each is stored as one of 256 values in (-1, 1]
// times a float that its group shares. In all, an element takes 4 + 8 / 64 + 32 / (64 * 256) bits.
//
// In memory, a tensor of type kNf4 consists of the groups' floats, the mean, the codes of the
// elements (two per byte, the first in the high half) and the codes of the blocks' scales, in this
// order.
//
// Source: Dettmers et al. 2023, arXiv:2305.14314, section 3 and appendix E; the map of scales:
// Dettmers 2016, arXiv:1511.04561, section 2, as bitsandbytes lays it out (`create_dynamic_map`).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill {

/// The number of elements in a block, and of blocks in a group. The last group may be smaller.
inline constexpr std::size_t kNf4BlockElements = 64;
inline constexpr std::size_t kNf4GroupBlocks = 256;

/// The values of NF4, ascending: quantiles of a normal distribution, scaled to [-1, 1], with an
/// exact 0.
inline constexpr std::array<float, 16> kNf4Values{-1.0F,
                                                  -0.6961928009986877F,
                                                  -0.5250730514526367F,
                                                  -0.39491748809814453F,
                                                  -0.28444138169288635F,
                                                  -0.18477343022823334F,
                                                  -0.09105003625154495F,
                                                  0.0F,
                                                  0.07958029955625534F,
                                                  0.16093020141124725F,
                                                  0.24611230194568634F,
                                                  0.33791524171829224F,
                                                  0.44070982933044434F,
                                                  0.5626170039176941F,
                                                  0.7229568362236023F,
                                                  1.0F};
/// The code of 0.
inline constexpr std::uint8_t kNf4Zero = 7;

/// Returns the 256 values that scales are quantized to, in ascending order: 0, 1, and with both
/// signs the midpoints of the parts into which 7 decades are split. The highest decade is
/// [0.1, 1]. The lowest is a single part, and each of the others is split into twice as many equal
/// parts as the decade below it.
[[nodiscard]] std::span<const float, 256> nf4_scale_values() noexcept;

/// Views of the parts of a tensor of type kNf4, all of them borrowed.
struct Nf4Parts {
  std::span<const float> group_scales;        // one per 256 blocks; the last group may be short
  float offset = 0.0F;                        // the mean of the blocks' scales
  std::span<const std::uint8_t> codes;        // 32 bytes per block
  std::span<const std::uint8_t> block_codes;  // one per block
};

/// Returns the size of the groups' floats and the offset for `num_blocks` blocks. Units: bytes.
[[nodiscard]] constexpr std::uint64_t nf4_shared_bytes(std::uint64_t num_blocks) noexcept {
  return (num_blocks / kNf4GroupBlocks + (num_blocks % kNf4GroupBlocks != 0 ? 1 : 0) + 1) *
         sizeof(float);
}

/// Returns the parts of `num_elements` elements that are stored at `data` in the layout above.
/// Requires `num_elements` to be a multiple of 64, and `data` to be aligned for floats.
[[nodiscard]] Nf4Parts nf4_parts(const void* data, std::int64_t num_elements) noexcept;
/// Returns the parts of `tensor`. Requires type kNf4.
[[nodiscard]] Nf4Parts nf4_parts(const Tensor& tensor) noexcept;

/// Returns the scale of a block: the value of its code times its group's float, plus the offset.
/// Both operations are in float32 and are rounded separately.
[[nodiscard]] inline float nf4_block_scale(const Nf4Parts& parts, std::int64_t block) noexcept {
  const auto at = static_cast<std::size_t>(block);
  const float product =
      nf4_scale_values()[parts.block_codes[at]] * parts.group_scales[at / kNf4GroupBlocks];
  return product + parts.offset;
}

/// Returns element `index`: the value of its code times its block's scale, rounded to float32 once.
[[nodiscard]] inline float nf4_element(const Nf4Parts& parts, std::int64_t index) noexcept {
  const unsigned pair = parts.codes[static_cast<std::size_t>(index / 2)];
  const float value = kNf4Values[index % 2 == 0 ? pair >> 4U : pair & 15U];
  return value * nf4_block_scale(parts, index / static_cast<std::int64_t>(kNf4BlockElements));
}

/// Writes elements [first, first + out.size()) to `out`. Requires `first` and `out.size()` to be
/// multiples of 64.
void widen_nf4(const Nf4Parts& parts, std::int64_t first, std::span<float> out);

/// A function that fills `out` with consecutive elements, starting with element `first`.
using ReadElements = std::function<void(std::int64_t first, std::span<float> out)>;

/// The largest magnitude that can be quantized. Decoding a scale adds two numbers of up to this
/// magnitude, and their sum is finite.
inline constexpr float kNf4MaxMagnitude = 1e38F;

/// Quantizes `num_elements` elements, a multiple of 64. None may be NaN or have a magnitude above
/// `kNf4MaxMagnitude`.
///
/// For each block, scale = max|x|. An element gets the code of the value that is nearest to
/// x * (1 / max(scale, 1e-38)); halfway between two values, that of the lower one. The offset is
/// the mean of the scales, summed in double. For each block, d = scale - offset; the group's float
/// is the largest |d|. A block gets the code of the value that is nearest to d divided by that
/// float, with the same rule for halves; if the float is 0, it gets code 0. Elements are encoded
/// with the scale before it is quantized, as in QLoRA.
[[nodiscard]] Buffer quantize_nf4(std::int64_t num_elements, const ReadElements& read);

/// Returns `tensor` (a type of `is_float_type`, its last extent a multiple of 64) quantized to
/// kNf4.
/// Errors: `kInvalidArgument` naming the tensor `name`: another type; rows that cannot be split
/// into blocks; NaN, infinity or a magnitude above `kNf4MaxMagnitude`, naming the element.
[[nodiscard]] Result<Tensor> quantize_nf4(const Tensor& tensor, const std::string& name);

/// Assembles a tensor from copies of the given parts.
/// Errors: `kCorruptData` naming the tensor `name`: negative or overflowing extents; rows that
/// cannot be split into blocks; numbers of codes, blocks or groups that do not match the shape;
/// floats that are not finite, or that yield a scale that is not finite.
[[nodiscard]] Result<Tensor> make_nf4_tensor(const Nf4Parts& parts, std::vector<std::int64_t> shape,
                                             const std::string& name);

}  // namespace tidemill
