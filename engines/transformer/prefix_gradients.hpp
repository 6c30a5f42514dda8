// SPDX-License-Identifier: Apache-2.0
// The gradients of a shared prefix's keys and values.
//
// For each segment that continues a prefix, the contributions of its queries to the prefix's keys
// and values are summed from zero. Those sums are added in the order of the segments. The prefix's
// own queries add last, when the prefix itself goes through the layer. The order, and therefore the
// bits, do not depend on how the segments are divided into batches.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/batch_plan.hpp"
#include "engines/transformer/device_matrix.hpp"

namespace tidemill::engines {

/// The gradients of some keys and values. Both are (positions, K*C).
struct KvGradient {
  Matrix dk;
  Matrix dv;
};

/// Carries gradients of a prefix from the batches that continue it to the batch that trains it.
struct CarriedPrefix {
  std::int64_t num_tokens = 0;       // P; 0: nothing is carried
  std::vector<DeviceMatrix> dkey;    // (P, K*C) per layer
  std::vector<DeviceMatrix> dvalue;  // likewise

  [[nodiscard]] bool empty() const noexcept { return num_tokens == 0; }
  /// Reserves memory for a prefix of `rows` tokens. Nothing may be carried at the time.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(const ModelConfig& config, std::int64_t rows, DeviceMemory& memory);
};

/// Sums the gradients of all prefixes of a plan, for one layer at a time.
class PrefixGradients {
public:
  /// The first prefix of the plan starts from the carried gradients. The gradients of the last
  /// prefix are carried to the next batch unless it is trained in this one. `carried` may be null
  /// if neither applies. All arguments must outlive this object.
  PrefixGradients(const BatchPlan& plan, DeviceMatrix& dkey, DeviceMatrix& dvalue,
                  CarriedPrefix* carried, Ops& ops);

  /// Begins layer `index` of `num_layers` with the carried gradients. Keys have `cols` floats.
  void begin_layer(std::int64_t index, std::int64_t num_layers, std::int64_t cols);
  /// Adds the first rows of `from`, which are those of the prefix's positions.
  void add(std::int64_t prefix, const KvGradient& from);
  /// Copies the sums of `prefix` to the first rows of `to`.
  void copy(std::int64_t prefix, const KvGradient& to) const;
  /// Ends layer `index`: stores the gradients to carry to the next batch.
  void end_layer(std::int64_t index);
  /// Ends the batch: records whether gradients are carried to the next one.
  void finish();

private:
  [[nodiscard]] bool carries_on() const noexcept;
  [[nodiscard]] KvGradient rows_of(std::int64_t prefix) const;

  Ops& ops_;
  const BatchPlan& plan_;
  DeviceMatrix& dkey_;  // (sum of P, K*C)
  DeviceMatrix& dvalue_;
  CarriedPrefix* carried_;
};

}  // namespace tidemill::engines
