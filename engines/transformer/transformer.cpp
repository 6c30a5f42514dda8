// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/transformer.hpp"

#include <algorithm>
#include <utility>

#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {

PlanRanges add_plan(const BatchPlan& plan, std::span<const std::int32_t> ids, std::int64_t num_kept,
                    PassContents& contents) {
  const auto num_rows = static_cast<std::int64_t>(plan.positions.size());
  return {contents.add_indices(ids), contents.add_indices(plan.positions),
          contents.add_segments(plan.segments), contents.add_segments(plan.appends),
          add_adapters(plan.adapter_runs, num_rows - num_kept, contents)};
}

PlanLists lists_at(const PlanRanges& ranges, const PreparedPass& pass) {
  return {pass.indices(ranges.ids), pass.indices(ranges.positions), pass.segments(ranges.segments),
          pass.segments(ranges.appends), lists_at(ranges.adapters, pass)};
}

const PreparedPass& Transformer::State::prepare(PassContents contents,
                                                std::unique_ptr<PreparedPass>& slot) {
  slot = ops.prepare_pass(std::move(contents), std::move(slot)).value();
  return *slot;
}

Transformer::Transformer(ModelConfig config, Ops& ops)
    : state_(std::make_unique<State>(std::move(config), ops)) {}

Status Transformer::reserve(const PassLimits& limits) {
  TIDEMILL_RETURN_IF_ERROR(state_->rope.reserve(limits.positions));
  return state_->memory.reserve(state_->bytes_for(limits));
}

std::int64_t Transformer::reserved_bytes(const ModelConfig& config, const PassLimits& limits) {
  NoDeviceMemory none;
  return PassBuffers(config, none).bytes_for(limits) +
         RopeCache::bytes_for(config, limits.positions);
}

Transformer::~Transformer() = default;

const ModelConfig& Transformer::config() const noexcept {
  return state_->config;
}

std::int64_t Transformer::workspace_bytes() const noexcept {
  return state_->memory.size_bytes() + state_->forward.size_bytes() +
         state_->backward.size_bytes() + state_->head.size_bytes();
}

WorkspaceRowBytes Transformer::workspace_bytes_per_row(const ModelConfig& config,
                                                       WeightUse use) noexcept {
  const auto width = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t query = config.num_heads * config.head_dim;
  const std::int64_t key = config.num_kv_heads * config.head_dim;
  const std::int64_t whole = 2 * hidden;  // the residual stream and the result
  const std::int64_t window = hidden + 2 * query + 2 * key + 3 * inner;
  if (use == WeightUse::kForward) {
    return {.batch = (whole + window) * width};
  }
  const std::int64_t sums =
      config.num_heads + (config.qk_norm ? config.num_heads : 1);  // lse, rstd
  constexpr std::int64_t kTargets = 4;  // logprobs, entropies and their gradients
  const std::int64_t backward = hidden + (config.qk_norm ? 3 : 2) * query + inner;
  return {.batch = (whole + hidden + kTargets) * width,
          .group = (window + sums + backward) * width,
          .sequence = 2 * key * width};
}

std::int64_t Transformer::head_bytes(const ModelConfig& config, std::int64_t rows,
                                     std::int64_t group, std::int64_t chunk_rows) noexcept {
  const std::int64_t chunk = std::min(rows, chunk_rows);
  const std::int64_t logits = chunk * config.vocab_size;
  const std::int64_t own_logits = logits <= 3 * group * config.intermediate_size ? 0 : logits;
  const std::int64_t own_hidden = chunk <= group ? 0 : chunk * config.hidden_size;
  return (own_logits + own_hidden) * static_cast<std::int64_t>(sizeof(float));
}

std::vector<Transformer::PassRows> Transformer::largest_passes(const ModelConfig& config,
                                                               const PassLimits& limits) {
  // Beyond these groups, the head borrows its logits, or its hidden rows, from the layers.
  const std::int64_t own_logits =
      (limits.chunk_rows * config.vocab_size - 1) / (3 * config.intermediate_size);
  const std::int64_t own_hidden = limits.chunk_rows - 1;
  std::vector<PassRows> passes;
  for (const std::int64_t group : {limits.layer_rows, own_logits, own_hidden}) {
    const std::int64_t rows = std::clamp<std::int64_t>(group, 0, limits.layer_rows);
    // A smaller group than the least is a pass of its own.
    passes.push_back({rows < limits.min_layer_rows ? rows : limits.rows, rows});
  }
  return passes;
}

}  // namespace tidemill::engines
