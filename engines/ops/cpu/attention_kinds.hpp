// SPDX-License-Identifier: Apache-2.0
// The differences between attention over float32 and over bfloat16 keys and values.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/pairs.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// Products with a float32 cache.
struct Floats {
  using Unit = float;  // element of a page and of right operands
  using Left = float;  // element of left operands: queries and weights
  using Operands = TileOperands;
  static constexpr std::int64_t kUnitElements = 1;
  /// The backward pass pads the rows of a tile to a multiple of `kRowStep`, and columns and
  /// features to a multiple of `kColumnStep`.
  static constexpr std::int64_t kRowStep = 1;
  static constexpr std::int64_t kColumnStep = kLanes;
  static void keep(Left* to, const Vec& value) { store(to, value); }
  /// Return the factors of queries before their products and of scores after them and, in the
  /// backward pass, of the gradients of scores before their products and of queries after them.
  static float query_factor(float scale) { return scale; }
  static float score_factor(float /*scale*/) { return 1.0F; }
  static float dscore_factor(float /*scale*/) { return 1.0F; }
  static float dquery_factor(float scale) { return scale; }
};

/// Products with a bfloat16 cache. Left operands are rounded. The scale is applied to scores
/// instead of queries, so that it costs no precision when queries are rounded.
struct Pairs {
  using Unit = Pair;
  using Left = Rounded;
  using Operands = PairOperands;
  static constexpr std::int64_t kUnitElements = 2;
  static constexpr std::int64_t kRowStep = 2;
  static constexpr std::int64_t kColumnStep = kLanes;
  static void keep(Left* to, const Vec& value) { store_rounded(to, value); }
  static float query_factor(float /*scale*/) { return 1.0F; }
  static float score_factor(float scale) { return scale; }
  static float dscore_factor(float scale) { return scale; }
  static float dquery_factor(float /*scale*/) { return 1.0F; }
};

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
