// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of every operation against its contract, for all backends.
#pragma once

#include <cstdint>
#include <span>

#include "engines/ops/matrix.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Each function checks the arguments of the operation that it is named after. If they break the
/// contract of `Ops`, it aborts with a message that names the sizes.
/// Threads: pure functions.
void check_weight(const WeightView& weight);
void check_linear(ConstMatrix x, std::int64_t in_features, std::int64_t out_features,
                  std::span<const float> bias, ConstMatrix y);
void check_linear_backward_weight(ConstMatrix dy, ConstMatrix x, ConstMatrix dw);
void check_add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, ConstMatrix y);
void check_bias_backward(ConstMatrix dy, std::span<const float> dbias);
void check_embed(std::span<const std::int32_t> ids, std::int64_t vocabulary, std::int64_t width,
                 ConstMatrix rows);
void check_rms_norm(ConstMatrix x, std::span<const float> gain, ConstMatrix out,
                    std::span<const float> rstd);
void check_rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                             std::span<const float> rstd, ConstMatrix dx,
                             std::span<const float> dgain);
void check_rope(ConstMatrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                const RopeTables& tables);
void check_same_shape(ConstMatrix a, ConstMatrix b);
void check_halves(ConstMatrix wide, std::span<const std::uint16_t> narrow);
void check_scale_columns(ConstMatrix x, std::span<const float> factors, std::span<const float> bias,
                         ConstMatrix out);
void check_scale_columns_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> dfactors);
void check_attention_shape(const AttentionShape& shape);
void check_segments(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                    std::int64_t rows);
void check_kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     ConstMatrix k, ConstMatrix v, const RopeTables& rotation);
void check_attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     ConstMatrix q, ConstMatrix out, ConstMatrix lse);
void check_attention_backward(const AttentionShape& shape,
                              std::span<const AttentionSegment> segments,
                              std::span<const KvGradient> gradients, ConstMatrix q, ConstMatrix out,
                              ConstMatrix lse, ConstMatrix dout, ConstMatrix dq);
void check_log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                              std::span<const float> logprobs, std::span<const float> entropies);

}  // namespace tidemill::engines
