// SPDX-License-Identifier: Apache-2.0
// The exponential of sixteen lanes.
#pragma once

#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// e^x = power * 2^n; `shifted` holds n in its low bits.
struct ExponentialParts {
  Vec power;
  Vec n;
  Vec shifted;
};

/// Computes the parts of e^x. With x = n ln 2 + r and |r| <= ln 2 / 2, the power is
/// e^r = 1 + r + r^2 g(r), where g interpolates (e^r - 1 - r) / r^2 at five Chebyshev nodes (error
/// 0.09 units in the last place).
inline ExponentialParts exponential_parts(const Vec& x) {
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum.
  const Vec magic = broadcast(12582912.0F);
  ExponentialParts out;
  out.shifted = multiply_add(x, broadcast(1.44269504F), magic);
  out.n = out.shifted - magic;
  Vec r = multiply_add(out.n, broadcast(-0.693359375F), x);  // the first bits of ln 2: exact
  r = multiply_add(out.n, broadcast(2.12194440e-4F), r);     // the remaining bits of ln 2
  Vec g = broadcast(1.392621314e-03F);
  g = multiply_add(g, r, broadcast(8.363203146e-03F));
  g = multiply_add(g, r, broadcast(4.166655615e-02F));
  g = multiply_add(g, r, broadcast(1.666657627e-01F));
  g = multiply_add(g, r, broadcast(5.000000000e-01F));
  out.power = multiply_add(r * r, g, r) + broadcast(1.0F);
  return out;
}

/// Returns e^x within about one unit in the last place: 0 below -87.3, infinity above 88.7, and NaN
/// for NaN.
inline Vec exponential(const Vec& x) {
  const Vec low = broadcast(-87.3F);
  const Vec high = broadcast(88.7F);
  const ExponentialParts parts = exponential_parts(minimum(high, maximum(low, x)));
  // 2^n goes into the exponent bits.
  const Vec scaled = each_part([&](int i) {
    const auto exponent = reinterpret_cast<WordRegister>(parts.shifted.part[i]) << 23U;
    return reinterpret_cast<Register>(reinterpret_cast<WordRegister>(parts.power.part[i]) +
                                      exponent);
  });
  const Vec saturated = select(high < x, broadcast(__builtin_inff()), scaled);
  return select(x != x, x, select(x < low, broadcast(0.0F), saturated));
}

/// Returns the bits of `exponential` for x up to 88.7 and for NaN, in fewer operations. The result
/// is undefined for larger x.
inline Vec bounded_exponential(const Vec& x) {
#if defined(__AVX512F__)
  const ExponentialParts parts = exponential_parts(x);
  const __mmask16 kept = _mm512_cmp_ps_mask(native(x), native(broadcast(-87.3F)), _CMP_NLT_UQ);
  return from_native(_mm512_maskz_scalef_ps(kept, native(parts.power), native(parts.n)));
#else
  return exponential(x);
#endif
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
