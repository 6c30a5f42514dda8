// SPDX-License-Identifier: Apache-2.0
// What attention over float32 and over bfloat16 keys and values differ in.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/pairs.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// Products with a float32 cache.
struct Floats {
  using Unit = float;  // of a page and of right operands
  using Left = float;  // of queries and weights
  using Operands = TileOperands;
  static constexpr std::int64_t kUnitElements = 1;
  static void keep(Left* to, const Vec& value) { store(to, value); }
  /// What queries are multiplied by before their products, scores after; and, in the backward pass,
  /// gradients of scores before their products, those of queries after.
  static float query_factor(float scale) { return scale; }
  static float score_factor(float /*scale*/) { return 1.0F; }
  static float dscore_factor(float /*scale*/) { return 1.0F; }
  static float dquery_factor(float scale) { return scale; }
};

/// Products with a bfloat16 cache: left operands are rounded. So that no bits of a query are lost
/// to the scale, scores take it.
struct Pairs {
  using Unit = Pair;
  using Left = Rounded;
  using Operands = PairOperands;
  static constexpr std::int64_t kUnitElements = 2;
  static void keep(Left* to, const Vec& value) { store_rounded(to, value); }
  static float query_factor(float /*scale*/) { return 1.0F; }
  static float score_factor(float scale) { return scale; }
  static float dscore_factor(float scale) { return scale; }
  static float dquery_factor(float /*scale*/) { return 1.0F; }
};

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
