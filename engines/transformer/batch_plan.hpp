// SPDX-License-Identifier: Apache-2.0
// What a pass over a batch needs beside its tokens, worked out once for all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {

/// A prefix that segments continue, and where the gradients of its keys and values are among those
/// of all prefixes.
struct PlannedPrefix {
  std::int64_t first_row = 0;
  std::int64_t num_tokens = 0;
  bool trained = false;  // a segment of the plan; else of another batch
};

/// How a segment takes part in a prefix: index into `BatchPlan::prefixes`, or -1.
struct PrefixRole {
  std::int64_t is = -1;
  std::int64_t continues = -1;
};

/// Rows count from the first row planned.
struct BatchPlan {
  std::vector<std::int32_t> positions;  // of each row
  std::int64_t num_positions = 0;       // one more than the largest
  std::vector<AttentionSegment> segments;
  std::vector<AdapterRun> adapter_runs;
  /// What is stored in the cache: the segments, and once more those tokens of a prefix that share a
  /// page with what follows.
  std::vector<AttentionSegment> appends;
  std::vector<PlannedPrefix> prefixes;  // in the order of what continues them; of training rows
  std::vector<PrefixRole> roles;        // of each segment; of training rows
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
