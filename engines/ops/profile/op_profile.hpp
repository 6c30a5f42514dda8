// SPDX-License-Identifier: Apache-2.0
// Where the time of a device's operations goes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// What one kind of operation did, summed over its calls.
struct OpRecord {
  std::int64_t calls = 0;
  double seconds = 0.0;
  /// Multiply-adds count twice; exponentials and the like are not counted.
  double flops = 0.0;
  /// Operands read and results written, each once per call, whatever the caches made of it.
  double bytes = 0.0;
  /// What the multiply-adds take: kF32, or kBF16 for operands rounded to it or to less.
  DType operands = DType::kF32;
};

/// Records by name; those of linear layers carry their shape, e.g. "linear 1024 x 2816".
struct OpProfile {
  std::map<std::string, OpRecord> records;

  /// Returns the time of all records.
  [[nodiscard]] double seconds() const noexcept;
};

/// Makes operations that do what `ops` does and write each call down in `profile`, which must
/// outlive them. Threads: as `ops`.
[[nodiscard]] std::unique_ptr<Ops> make_profiled_ops(std::unique_ptr<Ops> ops, OpProfile& profile);

}  // namespace tidemill::engines
