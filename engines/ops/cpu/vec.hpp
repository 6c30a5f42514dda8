// SPDX-License-Identifier: Apache-2.0
// Vectors of sixteen floats, on every instruction set.
//
// Kernels are written once in terms of `Vec` and compiled once per instruction set, each time in a
// separate namespace (TIDEMILL_CPU_ISA). An older processor can then never reach a function that
// was compiled for a newer one. For the same reason, kernel files instantiate no templates of the
// standard library.
//
// A `Vec` always has 16 lanes, regardless of the register size. The order of every sum over lanes,
// and therefore every bit, is then the same on AVX2 and AVX-512. Without FMA, products are rounded
// before they are added, so the baseline build agrees with the others only within rounding.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "engines/ops/cpu/isa.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

#if defined(__AVX512F__)
inline constexpr std::int64_t kRegisterFloats = 16;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr std::int64_t kRegisterFloats = 8;
#else
inline constexpr std::int64_t kRegisterFloats = 4;
#endif

inline constexpr std::int64_t kLanes = 16;
inline constexpr std::int64_t kRegisters = kLanes / kRegisterFloats;  // registers in one `Vec`

using Register = float __attribute__((vector_size(kRegisterFloats * 4)));
using IntRegister = std::int32_t __attribute__((vector_size(kRegisterFloats * 4)));
using WordRegister = std::uint32_t __attribute__((vector_size(kRegisterFloats * 4)));
using HalfRegister = std::uint16_t __attribute__((vector_size(kRegisterFloats * 2)));

/// Returns a * b + c, with a single rounding if the instruction set has FMA.
inline Register multiply_add(Register a, Register b, Register c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Register>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return reinterpret_cast<Register>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
  return reinterpret_cast<Register>(vfmaq_f32(reinterpret_cast<float32x4_t>(c),
                                              reinterpret_cast<float32x4_t>(a),
                                              reinterpret_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

inline Register broadcast_register(float x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Register>(_mm512_set1_ps(x));
#elif defined(__AVX2__) && defined(__FMA__)
  return reinterpret_cast<Register>(_mm256_set1_ps(x));
#else
  return Register{x, x, x, x};
#endif
}

inline Register load_register(const float* from) {
  Register out;
  std::memcpy(&out, from, sizeof(out));
  return out;
}

/// Loads and widens bfloat16 elements, which is exact.
inline Register load_register(const std::uint16_t* from) {
#if !defined(__AVX512F__) && defined(__AVX2__) && defined(__FMA__)
  // GCC widens eight halves in two steps where one instruction does.
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Register>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#else
  HalfRegister half;
  std::memcpy(&half, from, sizeof(half));
  return reinterpret_cast<Register>(__builtin_convertvector(half, WordRegister) << 16U);
#endif
}

inline void store_register(float* to, Register value) {
  std::memcpy(to, &value, sizeof(value));
}

/// Sixteen floats.
struct Vec {
  Register part[kRegisters];
};

/// Holds sixteen booleans: the bits of a mask register, or lanes with all bits set or cleared.
struct Mask {
#if defined(__AVX512F__)
  __mmask16 bits;
#else
  IntRegister part[kRegisters];
#endif
};

template <class F>
inline Vec each_part(F f) {
  Vec out;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    out.part[i] = f(i);
  }
  return out;
}

inline Vec broadcast(float x) {
  return each_part([&](int) { return broadcast_register(x); });
}
template <class Element>
inline Vec load(const Element* from) {
  return each_part([&](int i) { return load_register(from + i * kRegisterFloats); });
}
inline void store(float* to, const Vec& value) {
#pragma GCC unroll 4
  for (std::ptrdiff_t i = 0; i < kRegisters; ++i) {
    store_register(to + i * kRegisterFloats, value.part[i]);
  }
}
#if defined(__AVX512F__)
/// Returns the mask of the first `count` < 16 lanes.
inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1U << static_cast<std::uint32_t>(count > 0 ? count : 0)) - 1U);
}
#endif
/// Loads min(count, 16) elements; the other lanes are 0.
template <class Element>
inline Vec load_some(const Element* from, std::int64_t count) {
  if (count >= kLanes) {
    return load(from);
  }
#if defined(__AVX512F__)
  if constexpr (sizeof(Element) == sizeof(float)) {
    const __mmask16 kept = first_lanes(count);
    return {{reinterpret_cast<Register>(_mm512_maskz_loadu_ps(kept, from))}};
  }
#endif
  Element lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    lanes[i] = from[i];
  }
  return load(lanes);
}
/// Stores the first min(count, 16) lanes.
inline void store_some(float* to, const Vec& value, std::int64_t count) {
  if (count >= kLanes) {
    store(to, value);
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, first_lanes(count), reinterpret_cast<__m512>(value.part[0]));
#else
  float lanes[kLanes];
  store(lanes, value);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = lanes[i];
  }
#endif
}

inline Vec operator+(const Vec& a, const Vec& b) {
  return each_part([&](int i) { return a.part[i] + b.part[i]; });
}
inline Vec operator-(const Vec& a, const Vec& b) {
  return each_part([&](int i) { return a.part[i] - b.part[i]; });
}
inline Vec operator*(const Vec& a, const Vec& b) {
  return each_part([&](int i) { return a.part[i] * b.part[i]; });
}
inline Vec operator/(const Vec& a, const Vec& b) {
  return each_part([&](int i) { return a.part[i] / b.part[i]; });
}
inline Vec operator-(const Vec& a) {
  return each_part([&](int i) { return -a.part[i]; });
}
/// Returns a * b + c.
inline Vec multiply_add(const Vec& a, const Vec& b, const Vec& c) {
  return each_part([&](int i) { return multiply_add(a.part[i], b.part[i], c.part[i]); });
}

inline Vec square_root(const Vec& x) {
  return each_part([&](int i) {
#if defined(__AVX512F__)
    return reinterpret_cast<Register>(
        _mm512_maskz_sqrt_ps(0xFFFF, reinterpret_cast<__m512>(x.part[i])));
#else
    Register root = x.part[i];
    for (int lane = 0; lane < kRegisterFloats; ++lane) {
      root[lane] = __builtin_sqrtf(root[lane]);
    }
    return root;
#endif
  });
}

#if defined(__AVX512F__)

inline __m512 native(const Vec& x) {
  return reinterpret_cast<__m512>(x.part[0]);
}
inline Vec from_native(__m512 x) {
  return {{reinterpret_cast<Register>(x)}};
}
inline Mask operator<(const Vec& a, const Vec& b) {
  return {_mm512_cmp_ps_mask(native(a), native(b), _CMP_LT_OQ)};
}
inline Mask operator!=(const Vec& a, const Vec& b) {
  return {_mm512_cmp_ps_mask(native(a), native(b), _CMP_NEQ_UQ)};
}
inline Mask operator|(const Mask& a, const Mask& b) {
  return {static_cast<__mmask16>(a.bits | b.bits)};
}
/// Returns whether any lane is set.
inline bool any(const Mask& mask) {
  return mask.bits != 0;
}
/// Returns a number whose bit i says whether lane i is set.
inline std::uint32_t lane_bits(const Mask& mask) {
  return mask.bits;
}
/// Returns the mask of lanes [first, last].
inline Mask lanes_between(std::int64_t first, std::int64_t last) {
  const std::int64_t from = first < 0 ? 0 : first > kLanes ? kLanes : first;
  const std::int64_t end = last < -1 ? 0 : last >= kLanes ? kLanes : last + 1;
  const std::uint32_t below_end = (1U << static_cast<std::uint32_t>(end)) - 1U;
  const std::uint32_t below_first = (1U << static_cast<std::uint32_t>(from)) - 1U;
  return {static_cast<__mmask16>(below_end & ~below_first)};
}
/// Returns `a` where the mask is set, else `b`.
inline Vec select(const Mask& mask, const Vec& a, const Vec& b) {
  return from_native(_mm512_mask_blend_ps(mask.bits, native(b), native(a)));
}
// The functions below use masked intrinsics, because GCC 12 warns about an uninitialized value
// inside the plain ones.
inline constexpr __mmask16 kAllLanes = 0xFFFF;
/// Returns the larger value of each lane, or NaN if `b` is NaN.
inline Vec maximum(const Vec& a, const Vec& b) {
  return from_native(_mm512_maskz_max_ps(kAllLanes, native(a), native(b)));
}
/// Returns the smaller value of each lane, or NaN if `b` is NaN.
inline Vec minimum(const Vec& a, const Vec& b) {
  return from_native(_mm512_maskz_min_ps(kAllLanes, native(a), native(b)));
}

#else

template <class F>
inline Mask each_mask(F f) {
  Mask out;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    out.part[i] = f(i);
  }
  return out;
}
inline Mask operator<(const Vec& a, const Vec& b) {
  return each_mask([&](int i) { return a.part[i] < b.part[i]; });
}
inline Mask operator!=(const Vec& a, const Vec& b) {
  return each_mask([&](int i) { return a.part[i] != b.part[i]; });
}
inline Mask operator|(const Mask& a, const Mask& b) {
  return each_mask([&](int i) { return a.part[i] | b.part[i]; });
}
/// Returns a number whose bit i says whether lane i is set.
inline std::uint32_t lane_bits(const Mask& mask) {
#if defined(__AVX2__) && defined(__FMA__)
  const int low = _mm256_movemask_ps(reinterpret_cast<__m256>(mask.part[0]));
  const int high = _mm256_movemask_ps(reinterpret_cast<__m256>(mask.part[1]));
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 8U;
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) {
    const auto lane =
        static_cast<std::uint32_t>(mask.part[i / kRegisterFloats][i % kRegisterFloats]);
    bits |= (lane & 1U) << static_cast<std::uint32_t>(i);
  }
  return bits;
#endif
}
/// Returns whether any lane is set.
inline bool any(const Mask& mask) {
  IntRegister all = mask.part[0];
  for (int i = 1; i < kRegisters; ++i) {
    all |= mask.part[i];
  }
  std::int32_t set = 0;
  for (int i = 0; i < kRegisterFloats; ++i) {
    set |= all[i];
  }
  return set != 0;
}
/// Returns the mask of lanes [first, last].
inline Mask lanes_between(std::int64_t first, std::int64_t last) {
  std::int32_t lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = i >= first && i <= last ? -1 : 0;
  }
  Mask out;
  std::memcpy(&out, lanes, sizeof(out));
  return out;
}
/// Returns `a` where the mask is set, else `b`.
inline Vec select(const Mask& mask, const Vec& a, const Vec& b) {
  return each_part([&](int i) {
    return reinterpret_cast<Register>((mask.part[i] & reinterpret_cast<IntRegister>(a.part[i])) |
                                      (~mask.part[i] & reinterpret_cast<IntRegister>(b.part[i])));
  });
}
/// Returns the larger value of each lane, or NaN if `b` is NaN.
inline Vec maximum(const Vec& a, const Vec& b) {
  return select(b < a, a, b);
}
/// Returns the smaller value of each lane, or NaN if `b` is NaN.
inline Vec minimum(const Vec& a, const Vec& b) {
  return select(a < b, a, b);
}

#endif

#if defined(__AVX512F__)

/// Return lanes [0, 8) and [8, 16).
inline __m256 lower_lanes(const Vec& value) {
  return reinterpret_cast<__m256>(
      __builtin_shufflevector(value.part[0], value.part[0], 0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256 upper_lanes(const Vec& value) {
  return reinterpret_cast<__m256>(
      __builtin_shufflevector(value.part[0], value.part[0], 8, 9, 10, 11, 12, 13, 14, 15));
}

/// Returns the sum of the lanes. Adds lanes i and i + 8 first, then i and i + 4, and so on.
inline float sum_lanes(const Vec& value) {
  const __m256 eight = _mm256_add_ps(lower_lanes(value), upper_lanes(value));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Returns the largest lane, or NaN if any lane is NaN.
inline float max_lane(const Vec& value) {
  if (any(value != value)) {
    return __builtin_nanf("");
  }
  const __m256 eight = _mm256_max_ps(lower_lanes(value), upper_lanes(value));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#else

/// Returns the sum of the lanes. Adds lanes i and i + 8 first, then i and i + 4, and so on.
inline float sum_lanes(const Vec& value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

/// Returns the largest lane, or NaN if any lane is NaN.
inline float max_lane(const Vec& value) {
  float lanes[kLanes];
  store(lanes, value);
  float top = lanes[0];
  for (int i = 1; i < kLanes; ++i) {
    top = lanes[i] > top || lanes[i] != lanes[i] ? lanes[i] : top;
  }
  return top;
}

#endif

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
