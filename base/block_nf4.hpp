// SPDX-License-Identifier: Apache-2.0
// 4-bit NormalFloat with double quantisation, as QLoRA keeps frozen weights and bitsandbytes stores
// them.
//
// The elements of a tensor, row after row, are cut into blocks of 64. An element is its block's
// scale times one of 16 values in [-1, 1]. Scales are quantised in their turn: less their mean, in
// groups of 256, each of which has a float that one of 256 values in (-1, 1] is multiplied by. That
// is 4 + 8 / 64 + 32 / (64 * 256) bits for an element.
//
// In memory a tensor of type kNf4 is the groups' floats, the mean, the codes of the elements (two
// in a byte, the first in its high half) and those of the blocks' scales.
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
#include "base/tensor.hpp"

namespace tidemill {

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

/// Returns the 256 values that scales are quantised to, ascending: for each of 7 decades that end
/// in 1, 2^i means of equal parts (i from 0 on in the lowest decade), with both signs; 0; and 1.
[[nodiscard]] std::span<const float, 256> nf4_scale_values() noexcept;

/// The parts of a tensor of type kNf4. Borrows all of them.
struct Nf4Parts {
  std::span<const float> group_scales;  // one for each 256 blocks, the last group may be short
  float offset = 0.0F;                  // the mean of the blocks' scales
  std::span<const std::uint8_t> codes;  // 32 bytes for each block
  std::span<const std::uint8_t> block_codes;  // one for each block
};

/// Returns the bytes that `num_blocks` blocks share: the groups' floats and the offset.
[[nodiscard]] constexpr std::uint64_t nf4_shared_bytes(std::uint64_t num_blocks) noexcept {
  return (num_blocks / kNf4GroupBlocks + (num_blocks % kNf4GroupBlocks != 0 ? 1 : 0) + 1) *
         sizeof(float);
}

/// Returns the parts of `num_elements` elements that lie at `data` as described above. Requires a
/// multiple of 64, and `data` aligned for floats.
[[nodiscard]] Nf4Parts nf4_parts(const void* data, std::int64_t num_elements) noexcept;
/// Returns the parts of a tensor of type kNf4.
[[nodiscard]] Nf4Parts nf4_parts(const Tensor& tensor) noexcept;

/// Returns the scale of a block: its value times its group's float, to which the offset is added;
/// both in float32, each rounded.
[[nodiscard]] inline float nf4_block_scale(const Nf4Parts& parts, std::int64_t block) noexcept {
  const auto at = static_cast<std::size_t>(block);
  const float product =
      nf4_scale_values()[parts.block_codes[at]] * parts.group_scales[at / kNf4GroupBlocks];
  return product + parts.offset;
}

/// Returns element `index`: value times scale, rounded to float32 once.
[[nodiscard]] inline float nf4_element(const Nf4Parts& parts, std::int64_t index) noexcept {
  const unsigned pair = parts.codes[static_cast<std::size_t>(index / 2)];
  const float value = kNf4Values[index % 2 == 0 ? pair >> 4U : pair & 15U];
  return value * nf4_block_scale(parts, index / static_cast<std::int64_t>(kNf4BlockElements));
}

/// Writes elements [first, first + out.size()) to `out`. Requires `first` and the count to be
/// multiples of 64.
void widen_nf4(const Nf4Parts& parts, std::int64_t first, std::span<float> out);

/// Fills `out` with consecutive elements from `first` on.
using ReadElements = std::function<void(std::int64_t first, std::span<float> out)>;

/// The largest magnitude that can be quantised: sums of scales stay finite.
inline constexpr float kNf4Most = 1e38F;

/// Quantises `num_elements` elements, a multiple of 64; none may be NaN or beyond `kNf4Most`.
///
/// Of each block: scale = max|x|; an element's code is that of the nearest value to
/// x * (1 / max(scale, 1e-38)), of the lower one half-way. The offset is the mean of the scales,
/// summed in double. Of each group: d = scale - offset, its float = max|d|; a code is that of the
/// nearest value to d / float, of the lower one half-way, and the first one where the float is 0.
/// Elements are coded by the scale before it was quantised, as QLoRA does.
[[nodiscard]] Buffer quantize_nf4(std::int64_t num_elements, const ReadElements& read);

/// Returns `tensor` (of a type of `is_float_type`, its last extent a multiple of 64) as kNf4.
/// Errors: `kInvalidArgument` naming the tensor `name` and the element: NaN, infinity, a magnitude
/// beyond `kNf4Most`; a shape that cannot be cut into blocks.
[[nodiscard]] Result<Tensor> quantize_nf4(const Tensor& tensor, const std::string& name);

/// Puts a tensor together from parts that came from elsewhere, which are copied.
/// Errors: `kCorruptData` naming the tensor `name`: negative or overflowing extents, rows that
/// cannot be cut into blocks, counts of codes, blocks or groups that do not fit the shape, floats
/// that are not finite or make a scale that is not.
[[nodiscard]] Result<Tensor> make_nf4_tensor(const Nf4Parts& parts, std::vector<std::int64_t> shape,
                                             const std::string& name);

}  // namespace tidemill
