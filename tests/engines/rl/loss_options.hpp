// SPDX-License-Identifier: Apache-2.0
// Reads the options of the golden files that several losses share.
#pragma once

#include "engines/rl/aggregate.hpp"
#include "tests/engines/rl/golden_case.hpp"

namespace tidemill::engines::golden {

inline void read_aggregate(CaseOptions& options, AggregateOptions& aggregate) {
  options.read<Aggregation>("agg", aggregate.kind,
                            {{"token-mean", Aggregation::kTokenMean},
                             {"token-sum", Aggregation::kTokenSum},
                             {"seq-mean-token-sum", Aggregation::kSeqMeanTokenSum},
                             {"seq-mean-token-mean", Aggregation::kSeqMeanTokenMean},
                             {"seq-mean-token-sum-norm", Aggregation::kSeqMeanTokenSumNorm},
                             {"batch-fixed-length", Aggregation::kBatchFixedLength}});
  options.read("global_tokens", aggregate.global_tokens);
  options.read("global_seqs", aggregate.global_seqs);
  options.read("global_rows", aggregate.global_rows);
  options.read("dp_size", aggregate.dp_size);
  options.read("horizon", aggregate.horizon);
}

/// Sets the default horizon of the golden files, the padded width, which trimmed rows do not show.
template <class Real>
void resolve_horizon(const CaseInputs<Real>& in, AggregateOptions& aggregate) {
  if (in.layout() == Layout::kTrimmed && !aggregate.horizon) {
    aggregate.horizon = static_cast<std::int64_t>(in.width());
  }
}

}  // namespace tidemill::engines::golden
