// SPDX-License-Identifier: Apache-2.0
// Divides the memory of a pass among its buffers.
#include "engines/transformer/transformer_state.hpp"

#include <algorithm>

#include "engines/transformer/backward_groups.hpp"

namespace tidemill::engines {

void ForwardBuffers::borrow(const ModelConfig& config, std::int64_t rows, std::int64_t window,
                            bool keeps, PassMemory& memory) {
  const std::int64_t query_cols = config.num_heads * config.head_dim;
  const std::int64_t key_cols = config.num_kv_heads * config.head_dim;
  memory.lend(residual, rows, config.hidden_size);
  memory.lend(normed, window, config.hidden_size);
  memory.lend(query, window, query_cols);
  memory.lend(key, window, key_cols);
  memory.lend(value, window, key_cols);
  memory.lend(attention, window, query_cols);
  memory.lend(inner, 3 * window, config.intermediate_size);
  memory.lend(hidden, rows, config.hidden_size);
  if (keeps) {
    const std::int64_t norms = config.qk_norm ? std::max(config.num_heads, config.num_kv_heads) : 1;
    memory.lend(rstd, window, norms);
    memory.lend(lse, window, config.num_heads);
  }
}

void BackwardBuffers::borrow(const ModelConfig& config, const Rows& rows, PassMemory& memory) {
  const std::int64_t query_cols = config.num_heads * config.head_dim;
  const std::int64_t key_cols = config.num_kv_heads * config.head_dim;
  memory.lend(dresidual, rows.batch, config.hidden_size);
  memory.lend(dnormed, rows.group, config.hidden_size);
  memory.lend(dactivated, rows.group, config.intermediate_size);
  if (config.qk_norm) {
    memory.lend(query, rows.group, query_cols);
  }
  memory.lend(dquery, rows.group, query_cols);
  memory.lend(dkey, rows.sequence, key_cols);
  memory.lend(dvalue, rows.sequence, key_cols);
  memory.lend(dattention, rows.group, query_cols);
  memory.lend(prefix_dkey, rows.prefix, key_cols);
  memory.lend(prefix_dvalue, rows.prefix, key_cols);
}

void HeadBuffers::borrow(const ModelConfig& config, const ForwardBuffers& forward,
                         std::int64_t rows, std::int64_t chunk, PassMemory& memory) {
  const auto borrow_rows = [&](DeviceMatrix& matrix, const DeviceMatrix& of_forward,
                               std::int64_t cols) {
    if (of_forward.memory_bytes() >= chunk * cols * element_bytes(matrix.dtype()) ||
        !memory.lend(matrix, chunk, cols)) {
      matrix.lend(of_forward);
    }
  };
  borrow_rows(hidden, forward.normed, config.hidden_size);
  borrow_rows(dhidden, forward.residual, config.hidden_size);
  borrow_rows(logits, forward.inner, config.vocab_size);
  for (DeviceMatrix* values : {&logprobs, &entropies, &dlogprobs, &dentropies}) {
    memory.lend(*values, rows, 1);
  }
}

void PassBuffers::begin_forward(std::int64_t rows, std::int64_t window, bool keeps) {
  memory.rewind();
  forward.borrow(config, rows, window, keeps, memory);
  forward_end = head_end = memory.position();
}

void PassBuffers::begin_head(std::int64_t rows, std::int64_t chunk_rows) {
  memory.rewind(forward_end);
  head.borrow(config, forward, rows, std::min(rows, chunk_rows), memory);
  head_end = memory.position();
}

void PassBuffers::begin_backward(const BackwardBuffers::Rows& rows) {
  memory.rewind(head_end);
  backward.borrow(config, rows, memory);
}

// Returns the memory of one pass: the sum of what the calls above lend.
std::int64_t PassBuffers::pass_bytes(const PassLimits& pass) {
  const bool trains = pass.use == WeightUse::kForwardAndBackward;
  begin_forward(pass.rows, pass.layer_rows, trains || pass.keeps_rows);
  if (!trains) {
    return memory.position();
  }
  begin_head(0, 0);  // lent from the buffers of the forward pass, or counted next
  constexpr std::int64_t kHeadBuffers = 7;
  constexpr std::int64_t kLine = 64;
  const std::int64_t of_head =
      Transformer::head_bytes(config, pass.rows, pass.layer_rows, pass.chunk_rows) +
      4 * pass.rows * std::int64_t{sizeof(float)} + kHeadBuffers * kLine;
  begin_backward({pass.rows, pass.layer_rows, pass.sequence_rows, pass.prefix_rows});
  return memory.position() + of_head;
}

std::int64_t PassBuffers::bytes_for(const PassLimits& limits) {
  if (limits.use != WeightUse::kForwardAndBackward) {
    return pass_bytes(limits);
  }
  std::int64_t bytes = 0;
  PassLimits pass = limits;
  for (const auto& [rows, group] : Transformer::largest_passes(config, limits)) {
    pass.rows = rows;
    pass.layer_rows = group;
    bytes = std::max(bytes, pass_bytes(pass));
  }
  return bytes;
}

}  // namespace tidemill::engines
