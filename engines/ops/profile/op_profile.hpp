// SPDX-License-Identifier: Apache-2.0
// Records the time and the cost of each kind of operation of a device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Holds the cost of one kind of operation, summed over its calls.
struct OpRecord {
  std::int64_t calls = 0;
  double seconds = 0.0;
  /// A multiply-add counts as two operations; exponentials and the like are not counted.
  double flops = 0.0;
  /// Operands read and results written, each counted once per call, regardless of caching.
  double bytes = 0.0;
  /// Operand type of the multiply-adds: kF32, or kBF16 if operands are rounded to it or to less.
  DType operands = DType::kF32;
};

/// Holds the records by operation name. Names of linear layers include the shape, e.g.
/// "linear 1024 x 2816".
struct OpProfile {
  std::map<std::string, OpRecord> records;

  /// Returns the total time of all records. Units: seconds.
  [[nodiscard]] double seconds() const noexcept;
};

/// Returns operations that forward to `ops` and record each call in `profile`, which must outlive
/// them.
/// Threads: as `ops`.
[[nodiscard]] std::unique_ptr<Ops> make_profiled_ops(std::unique_ptr<Ops> ops, OpProfile& profile);

}  // namespace tidemill::engines
