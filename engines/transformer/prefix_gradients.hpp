// SPDX-License-Identifier: Apache-2.0
// The gradients that a shared prefix gets through its keys and values.
//
// Each segment that continues a prefix gathers, from zero, what its queries give the prefix's keys
// and values; those sums are added up in the order of the segments; the prefix's own queries add
// last, when it goes through the layer itself. Where batches are cut between the segments changes
// nothing of that order, nor of the bits.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch_plan.hpp"
#include "engines/transformer/owned_matrix.hpp"

namespace tidemill::engines {

/// What segments of one batch have given a prefix that is trained in a later one.
struct CarriedPrefix {
  std::int64_t num_tokens = 0;      // P; 0: nothing is carried
  std::vector<OwnedMatrix> dkey;    // of each layer (P, K*C)
  std::vector<OwnedMatrix> dvalue;  // likewise

  [[nodiscard]] bool empty() const noexcept { return num_tokens == 0; }
};

/// The sums of all prefixes of a plan, for one layer at a time.
class PrefixGradients {
public:
  /// The plan's first prefix continues what is carried, its last one is carried on unless it is
  /// trained. `carried` may be null when there is nothing of either. All must outlive it.
  PrefixGradients(const BatchPlan& plan, OwnedMatrix& dkey, OwnedMatrix& dvalue,
                  CarriedPrefix* carried);

  /// Begins layer `index` of `num_layers` with what was carried; keys have `cols` floats.
  void begin_layer(std::int64_t index, std::int64_t num_layers, std::int64_t cols);
  /// Adds the first rows of `from`, those of the prefix's positions.
  void add(std::int64_t prefix, const KvGradient& from, Ops& ops);
  /// Copies the sums of `prefix` to the first rows of `to`.
  void copy(std::int64_t prefix, const KvGradient& to) const;
  /// Ends layer `index`.
  void end_layer(std::int64_t index);
  /// Ends the batch.
  void finish();

private:
  [[nodiscard]] bool carries_on() const noexcept;
  [[nodiscard]] KvGradient rows_of(std::int64_t prefix) const;

  const BatchPlan& plan_;
  OwnedMatrix& dkey_;  // (sum of P, K*C)
  OwnedMatrix& dvalue_;
  CarriedPrefix* carried_;
};

}  // namespace tidemill::engines
