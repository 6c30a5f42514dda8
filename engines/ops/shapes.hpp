// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of every operation against its contract, for all backends.
#pragma once

#include <cstdint>
#include <span>

#include "engines/ops/host/host_ops.hpp"

namespace tidemill::engines {

/// Each function checks the arguments of the operation that it is named after. If they break the
/// contract of `host::Ops`, it aborts with a message that names the sizes.
/// Threads: pure functions.
void check_weight(const WeightView& weight);
/// Checks a range of the `all` rows of a weight or a table.
void check_weight_rows(WeightRows rows, std::int64_t all);
void check_linear(host::ConstMatrix x, const PreparedWeight& weight, const host::LinearTerm& term);
void check_linear_backward_input(host::ConstMatrix dy, const PreparedWeight& weight,
                                 std::int64_t first_input, host::ConstMatrix dx);
void check_linear_backward_weight(host::ConstMatrix dy, host::ConstMatrix x, host::ConstMatrix dw);
void check_add_low_rank(host::ConstMatrix x, std::span<const host::LowRankTerm> terms,
                        host::ConstMatrix y);
void check_bias_backward(host::ConstMatrix dy, std::span<const float> dbias);
void check_embed(std::span<const std::int32_t> ids, std::int64_t vocabulary, std::int64_t width,
                 host::ConstMatrix rows);
void check_rms_norm(host::ConstMatrix x, std::span<const float> gain, host::ConstMatrix out,
                    std::span<const float> rstd);
void check_rms_norm_backward(host::ConstMatrix dout, host::ConstMatrix x,
                             std::span<const float> gain, std::span<const float> rstd,
                             host::ConstMatrix dx, std::span<const float> dgain);
void check_rope(host::ConstMatrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                const host::RopeTables& tables);
void check_same_shape(host::ConstMatrix a, host::ConstMatrix b);
void check_halves(host::ConstMatrix wide, std::span<const std::uint16_t> narrow);
void check_scale_columns(host::ConstMatrix x, std::span<const float> factors,
                         std::span<const float> bias, host::ConstMatrix out);
void check_scale_columns_backward(host::ConstMatrix dout, host::ConstMatrix x,
                                  std::span<const float> dfactors);
void check_attention_shape(const AttentionShape& shape);
void check_segments(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                    std::int64_t rows);
void check_kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     host::ConstMatrix k, host::ConstMatrix v, const host::RopeTables& rotation);
void check_attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     host::ConstMatrix q, host::ConstMatrix out, host::ConstMatrix lse);
void check_attention_backward(const AttentionShape& shape,
                              std::span<const AttentionSegment> segments,
                              std::span<const host::KvGradient> gradients, host::ConstMatrix q,
                              host::ConstMatrix out, host::ConstMatrix lse, host::ConstMatrix dout,
                              host::ConstMatrix dq);
void check_log_softmax_gather(host::ConstMatrix logits, std::span<const std::int32_t> targets,
                              std::span<const float> logprobs, std::span<const float> entropies);

}  // namespace tidemill::engines
