// SPDX-License-Identifier: Apache-2.0
// Packs rows of a weight as panels, and transposes panels for the backward direction.
//
// Both transpose square blocks in registers. A pair of bfloat16 is moved as one 32-bit word.
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/transpose.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

constexpr int kWords = kRegisterFloats;

// Loads a register of which only the first `bytes` bytes exist; the others are 0.
template <class V>
inline V load_bytes(const std::byte* from, std::int64_t bytes) {
  V out = {};
  std::memcpy(&out, from,
              bytes >= static_cast<std::int64_t>(sizeof(V)) ? sizeof(V)
              : bytes > 0                                   ? static_cast<std::size_t>(bytes)
                                                            : 0);
  return out;
}

// Describes the bits of a register of elements. An element is infinite or NaN if all bits of its
// exponent are set. Adding one to the exponent (`exponent_step`) then carries into the sign bit,
// and only then.
template <class ElementsOf, class ElementOf, ElementOf exponent_step>
struct FloatBits {
  using Elements = ElementsOf;
  using Element = ElementOf;
  static constexpr Element kExponentStep = exponent_step;
  static constexpr Element kMagnitude = std::numeric_limits<Element>::max() / 2;
  static constexpr Element kSign = kMagnitude + 1;
};
using F32Bits = FloatBits<WordRegister, std::uint32_t, 0x00800000>;
using Bf16Bits = FloatBits<Halves, std::uint16_t, 0x0080>;

// Returns a register in which the sign bit is set for exactly those elements that are not finite.
template <class Bits>
inline typename Bits::Elements not_finite(const WordRegister& words) {
  const auto elements = reinterpret_cast<const typename Bits::Elements&>(words);
  return (elements & Bits::kMagnitude) + Bits::kExponentStep;
}

template <class Bits>
inline bool has_sign(const typename Bits::Elements& elements) {
  bool found = false;
  for (std::size_t i = 0; i < sizeof(elements) / sizeof(typename Bits::Element); ++i) {
    found = found || (elements[i] & Bits::kSign) != 0;
  }
  return found;
}

// Packs rows of 32-bit words: panel[w][o] = row[o][w]. Returns whether all elements are finite.
template <class Bits>
bool pack_words(const PackJob& job) {
  constexpr auto kElementBytes = static_cast<std::int64_t>(sizeof(typename Bits::Element));
  const std::int64_t row_bytes = job.depth * kElementBytes;
  const std::int64_t stride_bytes = job.row_stride * kElementBytes;
  const std::int64_t num_words = (row_bytes + 3) / 4;
  constexpr std::int64_t kBlockBytes = sizeof(WordRegister);
  const std::int64_t whole_words =
      job.num_rows == kPanel ? row_bytes / kBlockBytes * kBlockBytes / 4 : 0;
  auto* panel = static_cast<std::byte*>(job.panel);
  typename Bits::Elements found = {};
  for (std::int64_t word = 0; word < num_words; word += kWords) {
    for (std::int64_t first = 0; first < kPanel; first += kWords) {
      const std::byte* row =
          static_cast<const std::byte*>(job.rows) + first * stride_bytes + word * 4;
      std::byte* out = panel + (word * kPanel + first) * 4;
      WordRegister block[kWords];
      if (word < whole_words) {
#pragma GCC unroll 16
        for (int i = 0; i < kWords; ++i) {
          std::memcpy(&block[i], row + i * stride_bytes, sizeof(block[i]));
          found |= not_finite<Bits>(block[i]);
        }
        transpose_square<kWords>(block);
#pragma GCC unroll 16
        for (int i = 0; i < kWords; ++i) {
          std::memcpy(out + i * kPanel * 4, &block[i], sizeof(block[i]));
        }
        continue;
      }
#pragma GCC unroll 16
      for (int i = 0; i < kWords; ++i) {
        block[i] = first + i < job.num_rows
                       ? load_bytes<WordRegister>(row + i * stride_bytes, row_bytes - word * 4)
                       : WordRegister{};
        found |= not_finite<Bits>(block[i]);
      }
      transpose_square<kWords>(block);
      const std::int64_t count = num_words - word < kWords ? num_words - word : kWords;
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(out + i * kPanel * 4, &block[i], sizeof(block[i]));
      }
    }
  }
  return !has_sign<Bits>(found);
}

// Transposes a 16 x 16 block: out[o][i] = in[i][o] for the `count` rows of `in` that exist.
void transpose_block_f32(const float* in, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < kPanel; i += kWords) {
    for (std::int64_t o = 0; o < kPanel; o += kWords) {
      Register block[kWords];
#pragma GCC unroll 16
      for (int r = 0; r < kWords; ++r) {
        block[r] = i + r < count ? load_register(in + (i + r) * kPanel + o) : Register{};
      }
      transpose_square<kWords>(block);
#pragma GCC unroll 16
      for (int r = 0; r < kWords; ++r) {
        store_register(out + (o + r) * kPanel + i, block[r]);
      }
    }
  }
}

// Transposes a block of pairs from panel to panel.
void transpose_block_bf16(const std::uint16_t* in, std::int64_t count, std::uint16_t* out) {
  transpose_pairs(in, 2 * kPanel, count, out, 2 * kPanel);
}

// Transposes the part of all panels that belongs to the job's inputs, one panel after the other.
// `block` transposes 16 inputs of a panel; `rows` is the number of inputs, or of pairs of inputs,
// in a panel. Each part is a few cache lines, far from those of the next panel, which are
// prefetched.
template <class Element, int kBlockRows, class Block>
void transpose_panels(const TransposeJob& job, std::int64_t rows, const Block& block) {
  constexpr std::int64_t kPanelsAhead = 2;
  constexpr std::int64_t kBlock = kPanel * kPanel;
  constexpr std::int64_t kLine = 64 / sizeof(Element);
  const std::int64_t panels = job.shape.num_panels();
  const std::int64_t stride = job.shape.panel_elements();
  const Element* from = static_cast<const Element*>(job.panels) + job.first_panel * kBlock;
  auto* out = static_cast<Element*>(job.out);
  for (std::int64_t o = 0; o < panels; ++o, from += stride, out += kBlock) {
    if (o + kPanelsAhead < panels) {
      for (std::int64_t at = 0; at < job.num_panels * kBlock; at += kLine) {
        __builtin_prefetch(from + kPanelsAhead * stride + at, 0, 2);
      }
    }
    for (std::int64_t panel = 0; panel < job.num_panels; ++panel) {
      block(from + panel * kBlock, rows - (job.first_panel + panel) * kBlockRows,
            out + panel * job.out_stride);
    }
  }
}

void transpose_f32(const TransposeJob& job) {
  transpose_panels<float, kPanel>(job, job.shape.depth, transpose_block_f32);
}

void transpose_bf16(const TransposeJob& job) {
  transpose_panels<std::uint16_t, kPanel / 2>(job, (job.shape.depth + 1) / 2, transpose_block_bf16);
}

}  // namespace

void add_panel_kernels(KernelTable& table) noexcept {
  table.pack_f32 = pack_words<F32Bits>;
  table.pack_bf16 = pack_words<Bf16Bits>;
  table.transpose_f32 = transpose_f32;
  table.transpose_bf16 = transpose_bf16;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
