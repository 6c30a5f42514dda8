// SPDX-License-Identifier: Apache-2.0
// Operations that are made of others.
#include "engines/ops/ops.hpp"

#include <algorithm>
#include <vector>

#include "base/check.hpp"

namespace tidemill::engines {

void Ops::attention_backward(const AttentionShape& shape,
                             std::span<const AttentionSegment> segments, ConstMatrix q,
                             KvLayer cache, ConstMatrix out, ConstMatrix lse, ConstMatrix dout,
                             Matrix dq, Matrix dk, Matrix dv) {
  std::vector<KvGradient> gradients;
  gradients.reserve(segments.size());
  for (const AttentionSegment& segment : segments) {
    const std::int64_t first = segment.first_row;
    const std::int64_t count = segment.num_tokens;
    TIDEMILL_CHECK(segment.first_position == 0) << segment.first_position;
    TIDEMILL_CHECK(first >= 0 && count >= 0 && first + count <= std::min(dk.rows, dv.rows))
        << first << " + " << count << " of " << dk.rows << " and " << dv.rows;
    for (std::int64_t row = first; row < first + count; ++row) {
      std::fill_n(dk.row(row), dk.cols, 0.0F);
      std::fill_n(dv.row(row), dv.cols, 0.0F);
    }
    gradients.push_back({dk.slice_rows(first, count), dv.slice_rows(first, count)});
  }
  attention_backward_windows(shape, segments, gradients, q, cache, out, lse, dout, dq);
}

}  // namespace tidemill::engines
