// SPDX-License-Identifier: Apache-2.0
// The types that operations on device memory (ops.hpp) and their implementations on host memory
// (host/host_ops.hpp) have in common: weights, attention, flags.
#pragma once

#include <cstdint>
#include <span>

#include "base/buffer.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::engines {

/// Products may be cut at multiples of this many features.
inline constexpr std::int64_t kFeatureStep = 64;

/// What callers of a backend must know besides the rules of ops.hpp.
struct BackendTraits {
  /// Sums over rows keep their bits if they are cut at multiples of this many rows (R2 in ops.hpp).
  std::int64_t row_sum_step = 1;

  friend bool operator==(const BackendTraits&, const BackendTraits&) = default;
};

/// Rows [first, first + count) of a weight or a table that is laid out part by part. `first` is a
/// multiple of `kFeatureStep`, and so is `count` unless the range ends with the last row.
struct WeightRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Says whether an operation overwrites its destination or adds to it.
enum class Store : std::uint8_t { kOverwrite, kAdd };

/// Says what a prepared weight will be used for. A backend may use one layout for both.
enum class WeightUse : std::uint8_t { kForward, kForwardAndBackward };

/// Describes the weight of a linear layer in host memory, as stored in a file: O x I, row-major,
/// contiguous.
struct WeightView {
  const void* data = nullptr;
  /// kF32, kF16 or kBF16; kBlockI8 if I is a multiple of 32; kNf4 if I is a multiple of 64.
  DType dtype = DType::kF32;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  /// The buffer with exactly the bytes at `data` if it is backed by a mapped file, otherwise null.
  /// A backend that reads the weight only once may read it with `Buffer::copy_to`, piece by piece,
  /// instead of touching the mapping.
  const Buffer* file = nullptr;
};

/// Returns a view of `tensor` (O x I) as a weight. Borrows the tensor.
[[nodiscard]] inline WeightView weight_view(const Tensor& tensor) noexcept {
  return {tensor.data.bytes().data(), tensor.dtype, tensor.shape[0], tensor.shape[1],
          tensor.data.backing() == Backing::kFile ? &tensor.data : nullptr};
}

/// Holds a linear weight in a backend's own layout. Immutable; engines of one device may share it.
class PreparedWeight {
public:
  PreparedWeight() = default;
  PreparedWeight(const PreparedWeight&) = delete;
  PreparedWeight& operator=(const PreparedWeight&) = delete;
  virtual ~PreparedWeight() = default;
  [[nodiscard]] virtual std::int64_t out_features() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t in_features() const noexcept = 0;
  /// Returns how much memory it owns. Units: bytes.
  [[nodiscard]] virtual std::int64_t size_bytes() const noexcept = 0;
  /// Returns true if preparation found that all elements are finite. False proves nothing: the
  /// backend may not have checked, or rounding to a narrower type may have overflowed.
  [[nodiscard]] virtual bool seen_finite() const noexcept { return false; }
};

/// Holds the constants of one attention layer.
struct AttentionShape {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads; query head h reads kv head h / (H / K)
  std::int64_t head_dim = 0;
  float scale = 0.0F;             // multiplies q.k
  std::int64_t window = 0;        // query i sees keys j with 0 <= i - j < window; 0: no window
  std::int64_t page_tokens = 16;  // positions in one page of the cache
  DType kv_dtype = DType::kF32;   // kF32 or kBF16: the type that keys and values are stored in
};

/// Describes consecutive tokens of one sequence within the flat batch: a decode step (one token), a
/// prefill chunk, or a training window.
struct AttentionSegment {
  std::int64_t first_row = 0;  // its rows are [first_row, first_row + num_tokens)
  std::int64_t num_tokens = 0;
  std::int64_t first_position = 0;  // position of its first token in the sequence
  /// Cache pages of the sequence: position p is stored in pages[p / page_tokens]. They cover at
  /// least positions [0, first_position + num_tokens).
  std::span<const std::int32_t> pages;
  /// For the backward pass: the row of position 0 of the sequence in the gradients of keys and
  /// values. Positions follow each other there.
  std::int64_t first_kv_row = 0;
};

/// Says in which direction `rope` rotates.
enum class RopeDirection : std::uint8_t { kForward, kBackward };

}  // namespace tidemill::engines
