// SPDX-License-Identifier: Apache-2.0
// Matrix products through oneDNN, made row-independent.
//
// oneDNN chooses its inner loops by the shape of a product. Three habits keep rule R1: every
// product has one of a few fixed heights (rows are padded up, two at least), all heights of a
// weight share one packed layout and one implementation, and each shape is tried out when its first
// weight is packed: rows computed at every height must have the same bits, or the weight is left to
// the built-in kernels. Workers own column slabs, which oneDNN computes as it computes the whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.hpp"
#include "engines/ops/cpu/team.hpp"
#include "engines/ops/matrix.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines::cpu {

/// A matrix B (depth x cols) packed by oneDNN, in column slabs.
class OneDnnWeight {
public:
  OneDnnWeight() = default;
  OneDnnWeight(const OneDnnWeight&) = delete;
  OneDnnWeight& operator=(const OneDnnWeight&) = delete;
  virtual ~OneDnnWeight() = default;
  [[nodiscard]] virtual std::int64_t size_bytes() const noexcept = 0;
};

/// What oneDNN is trusted with.
struct OneDnnPolicy {
  bool f32 = false;
  bool bf16 = false;
  /// Take only shapes whose rows proved independent, and none too small to be worth the call.
  bool only_proven = true;
};

/// Computes y = x B + bias with oneDNN. Threads: one call at a time, as `Ops`.
class OneDnnMatmul {
public:
  /// Which matrix B a weight W (O x I) stands for.
  enum class Side : std::uint8_t { kTransposed /* B = W^T */, kPlain /* B = W */ };

  OneDnnMatmul(Workers& workers, const OneDnnPolicy& policy);
  OneDnnMatmul(const OneDnnMatmul&) = delete;
  OneDnnMatmul& operator=(const OneDnnMatmul&) = delete;
  ~OneDnnMatmul();

  /// Returns "oneDNN 2.6.3".
  [[nodiscard]] static std::string version();

  /// Computes a small product at several heights, places and column cuts, and compares the bits.
  /// Returns false if they differ, or if oneDNN cannot compute it.
  [[nodiscard]] bool self_check(DType compute);

  /// Packs B. Returns null for weights that the policy leaves to the built-in kernels.
  [[nodiscard]] std::unique_ptr<OneDnnWeight> pack(const WeightView& weight, DType compute,
                                                   Side side);

  /// y = or += x B + bias; `bias` may be null.
  void multiply(ConstMatrix x, const OneDnnWeight& weight, const float* bias, Store store,
                Matrix y);

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill::engines::cpu
