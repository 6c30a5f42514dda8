// SPDX-License-Identifier: Apache-2.0
// Plans a pass over a batch: what all layers need in addition to the tokens, computed once.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {

/// A prefix that segments continue. `first_row` locates the gradients of its keys and values among
/// those of all prefixes.
struct PlannedPrefix {
  std::int64_t first_row = 0;
  std::int64_t num_tokens = 0;
  bool trained = false;  // a segment of this plan; otherwise it is trained in a later batch
};

/// The role of a segment with respect to prefixes: indices into `BatchPlan::prefixes`, or -1.
struct PrefixRole {
  std::int64_t own_prefix = -1;        // the prefix that the segment is
  std::int64_t continued_prefix = -1;  // the prefix that the segment continues
};

/// A plan of some rows of a batch. Row numbers count from the first planned row.
struct BatchPlan {
  std::vector<std::int32_t> positions;  // one per row
  std::int64_t num_positions = 0;       // the largest position + 1
  std::vector<AttentionSegment> segments;
  std::vector<AdapterRun> adapter_runs;
  /// The tokens to store in the cache: the segments, and a second copy of those prefix tokens that
  /// share a page with a continuation.
  std::vector<AttentionSegment> appends;
  // Set only in plans of training rows:
  std::vector<PlannedPrefix> prefixes;  // in the order of the segments that continue them
  std::vector<PrefixRole> roles;        // one per segment
};

/// Plans all rows of `batch`. A batch that breaks the rules of `Batch` is a programmer error.
[[nodiscard]] BatchPlan plan_batch(const Batch& batch, const KvCache& cache);

/// A separate plan of the rows whose hidden states are requested. Attention gives a row the same
/// bits in both plans.
struct HiddenPlan {
  std::vector<std::int32_t> rows;  // ascending row numbers of the original plan
  BatchPlan plan;
};

/// Plans the rows of `batch` whose hidden states are requested; `all` is the plan of all its rows.
[[nodiscard]] HiddenPlan plan_hidden_rows(const Batch& batch, const BatchPlan& all);

/// Consecutive rows of a plan, and their own plan.
struct PlannedRows {
  std::int64_t first_row = 0;
  BatchPlan plan;
};

/// Divides the rows of `plan`, the plan of `batch`, into windows of at most `max_rows` rows, in an
/// order in which a forward pass may take them through a layer: the keys and values that a window
/// reads are its own or those of windows before it. A prefix therefore comes before the segments
/// that continue it. Windows have rows either of training segments or of inference segments.
[[nodiscard]] std::vector<PlannedRows> cut_plan(const Batch& batch, const BatchPlan& plan,
                                                std::int64_t max_rows);

/// Plans only the training rows of `batch`.
[[nodiscard]] BatchPlan plan_training_rows(const Batch& batch, const KvCache& cache);

}  // namespace tidemill::engines
