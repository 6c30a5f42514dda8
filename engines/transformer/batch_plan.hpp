// SPDX-License-Identifier: Apache-2.0
// What a pass over a batch needs beside its tokens, worked out once for all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {

/// Rows count from the first row planned.
struct BatchPlan {
  std::vector<std::int32_t> positions;  // of each row
  std::int64_t num_positions = 0;       // one more than the largest
  std::vector<AttentionSegment> segments;
  std::vector<AdapterRun> adapter_runs;
};

/// Plans all rows of `batch`. A batch that breaks the rules of `Batch` is a programmer error.
[[nodiscard]] BatchPlan plan_batch(const Batch& batch, const KvCache& cache);

/// The rows whose hidden states are wanted, as a plan of their own; attention gives a row the same
/// bits in it.
struct HiddenPlan {
  std::vector<std::int64_t> rows;  // ascending, of the plan they are taken from
  BatchPlan plan;
};

/// Plans the rows of `batch`, planned as `all`, that hidden states are wanted of.
[[nodiscard]] HiddenPlan plan_hidden_rows(const Batch& batch, const BatchPlan& all);

/// Plans the training rows of `batch` alone.
[[nodiscard]] BatchPlan plan_training_rows(const Batch& batch, const KvCache& cache);

}  // namespace tidemill::engines
