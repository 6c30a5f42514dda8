// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/activations.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// The number of floats, and of elements of the type of kept rows, in one row.
struct RowSize {
  std::int64_t floats = 0;
  std::int64_t kept = 0;

  [[nodiscard]] std::int64_t bytes(DType dtype) const noexcept {
    return floats * static_cast<std::int64_t>(sizeof(float)) +
           kept * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

RowSize attention_size(const ModelConfig& config) {
  const std::int64_t query = config.num_heads * config.head_dim;
  RowSize size{.floats = 1 + config.num_heads,  // rstd, lse
               .kept = config.hidden_size + 2 * query};
  if (config.qk_norm) {
    size.floats += config.num_heads + config.num_kv_heads;
    size.kept += config.num_kv_heads * config.head_dim;
  }
  return size;
}

RowSize mlp_size(const ModelConfig& config) {
  return {.floats = 1, .kept = config.hidden_size + 2 * config.intermediate_size};
}

// Returns the number of floats of A x that are kept for one row.
std::int64_t low_rank_floats(const ModelConfig& config, const AdapterSpec& spec) {
  const auto sites = spec.empty() ? decltype(module_sites(config)){} : module_sites(config);
  std::int64_t floats = 0;
  for (const AdaptedModule& module : spec) {
    const ModuleSite& site = sites.at(module.path);
    if (only_adds(module) && site.kind == ModuleSite::Kind::kLinear) {
      floats += module.rank;
    }
  }
  return floats;
}

}  // namespace

const char* recompute_name(Recompute recompute) noexcept {
  switch (recompute) {
    case Recompute::kNone: return "none";
    case Recompute::kCheap: return "cheap";
    case Recompute::kLayer: break;
  }
  return "layer";
}

std::int64_t AttentionActivations::size_bytes() const noexcept {
  return input.size_bytes() + input_rstd.size_bytes() + query.size_bytes() +
         query_rstd.size_bytes() + key.size_bytes() + key_rstd.size_bytes() +
         attention.size_bytes() + lse.size_bytes();
}

std::int64_t MlpActivations::size_bytes() const noexcept {
  return residual.size_bytes() + residual_rstd.size_bytes() + gate.size_bytes() + up.size_bytes();
}

Activations::Activations(const ModelConfig& config, std::int64_t first_layer, DeviceMemory& memory,
                         const KeepOptions& options)
    : config_(config),
      options_(options),
      first_layer_(first_layer),
      final_input_(memory),
      final_rstd_(memory),
      memory_(memory) {
  TIDEMILL_CHECK(first_layer >= 0 && first_layer <= config.num_layers) << first_layer;
  TIDEMILL_CHECK(!options.one_layer || options.recompute == Recompute::kNone);
  const auto layers = static_cast<std::size_t>(config.num_layers - first_layer);
  const auto own = options.one_layer ? std::min<std::size_t>(layers, 1) : layers;
  for (std::size_t i = 0; i < (options.recompute == Recompute::kLayer ? 1 : own); ++i) {
    attention_.emplace_back(memory, options.dtype);
  }
  for (std::size_t i = 0; i < (options.recompute == Recompute::kNone ? own : 1); ++i) {
    mlp_.emplace_back(memory, options.dtype);
  }
  for (std::size_t i = 0; i < (options.recompute == Recompute::kNone ? 0 : layers); ++i) {
    start_.emplace_back(memory);
  }
  low_rank_.resize(own);
  for (PerLinear<DeviceMatrix>& layer : low_rank_) {
    for (const LinearKind kind : kLinearKinds) {
      layer[kind] = DeviceMatrix(memory);
    }
  }
}

Status Activations::reserve(std::int64_t rows, const AdapterSpec& spec) {
  return memory_.reserve(bytes_for(rows, spec));
}

std::int64_t Activations::reserved_bytes(const ModelConfig& config, std::int64_t first_layer,
                                         const KeepOptions& options, std::int64_t rows,
                                         const AdapterSpec& spec) {
  NoDeviceMemory none;
  return Activations(config, first_layer, none, options).bytes_for(rows, spec);
}

std::int64_t Activations::bytes_for(std::int64_t rows, const AdapterSpec& spec) {
  ranks_ = std::vector<PerLinear<std::int64_t>>(low_rank_.size());
  const auto sites = spec.empty() ? decltype(module_sites(config_)){} : module_sites(config_);
  for (const AdaptedModule& module : spec) {
    const ModuleSite& site = sites.at(module.path);
    if (only_adds(module) && site.kind == ModuleSite::Kind::kLinear && site.layer >= first_layer_) {
      std::int64_t& rank = ranks_[options_.one_layer ? 0 : storage_index(site.layer)][site.linear];
      rank = std::max(rank, module.rank);
    }
  }
  lend_all(rows);
  return memory_.position();
}

void Activations::begin_pass(std::int64_t rows) {
  if (memory_.size_bytes() > 0) {
    lend_all(rows);
  }
}

// Layer by layer, so that a layer's activations are close together.
void Activations::lend_all(std::int64_t rows) {
  memory_.rewind();
  for (std::size_t i = 0; i < std::max({attention_.size(), mlp_.size(), start_.size()}); ++i) {
    if (i < attention_.size()) {
      lend(attention_[i], rows);
    }
    if (i < mlp_.size()) {
      lend(mlp_[i], rows);
    }
    if (i < start_.size()) {
      memory_.lend(start_[i], rows, config_.hidden_size);
    }
  }
  for (std::size_t i = 0; i < low_rank_.size(); ++i) {
    for (const LinearKind kind : kLinearKinds) {
      memory_.lend(low_rank_[i][kind], rows, ranks_[i][kind]);
    }
  }
  memory_.lend(final_input_, rows, config_.hidden_size);
  memory_.lend(final_rstd_, rows, 1);
}

void Activations::lend(AttentionActivations& half, std::int64_t rows) {
  const std::int64_t query = config_.num_heads * config_.head_dim;
  memory_.lend(half.input, rows, config_.hidden_size);
  memory_.lend(half.input_rstd, rows, 1);
  memory_.lend(half.query, rows, query);
  memory_.lend(half.attention, rows, query);
  memory_.lend(half.lse, rows, config_.num_heads);
  if (config_.qk_norm) {
    memory_.lend(half.query_rstd, rows, config_.num_heads);
    memory_.lend(half.key, rows, config_.num_kv_heads * config_.head_dim);
    memory_.lend(half.key_rstd, rows, config_.num_kv_heads);
  }
}

void Activations::lend(MlpActivations& half, std::int64_t rows) {
  memory_.lend(half.residual, rows, config_.hidden_size);
  memory_.lend(half.residual_rstd, rows, 1);
  memory_.lend(half.gate, rows, config_.intermediate_size);
  memory_.lend(half.up, rows, config_.intermediate_size);
}

std::size_t Activations::storage_index(std::int64_t index) const {
  TIDEMILL_CHECK(index >= first_layer_) << index;
  return static_cast<std::size_t>(index - first_layer_);
}

AttentionActivations& Activations::attention(std::int64_t index) {
  const std::size_t at = storage_index(index);
  return attention_[options_.recompute == Recompute::kLayer || options_.one_layer ? 0 : at];
}

MlpActivations& Activations::mlp(std::int64_t index) {
  const std::size_t at = storage_index(index);
  return mlp_[options_.recompute != Recompute::kNone || options_.one_layer ? 0 : at];
}

DeviceMatrix& Activations::start(std::int64_t index) {
  TIDEMILL_CHECK(options_.recompute != Recompute::kNone);
  return start_[storage_index(index)];
}

DeviceMatrix& Activations::low_rank(std::int64_t index, LinearKind kind) {
  return low_rank_[options_.one_layer ? 0 : storage_index(index)][kind];
}

// Calls f with every matrix that keeps rows of layer `index`.
template <class F>
void Activations::for_each_part(std::int64_t index, F f) {
  AttentionActivations& half = attention(index);
  for (DeviceMatrix* part : {&half.input, &half.input_rstd, &half.query, &half.query_rstd,
                             &half.key, &half.key_rstd, &half.attention, &half.lse}) {
    f(*part);
  }
  MlpActivations& inner = mlp(index);
  for (DeviceMatrix* part : {&inner.residual, &inner.residual_rstd, &inner.gate, &inner.up}) {
    f(*part);
  }
  for (const LinearKind kind : kLinearKinds) {
    f(low_rank(index, kind));
  }
}

// A record contains all parts of a row, one after the other, so that each row can be stored
// separately. The rstd of the final norm is not included, since it is computed together with the
// hidden states.
std::int64_t Activations::save_layer(std::int64_t index, const RecordPool& pool,
                                     std::int64_t first_byte, IndexList records, Ops& ops) {
  TIDEMILL_CHECK(options_.recompute == Recompute::kNone);
  const std::int64_t begin = first_byte;
  for_each_part(index, [&](DeviceMatrix& part) {
    if (part.bytes_per_row() > 0) {
      ops.copy_rows(part.view(), {}, pool.part(first_byte, part.cols(), part.dtype()), records);
      first_byte += part.bytes_per_row();
    }
  });
  for (const LinearKind kind : kLinearKinds) {
    if (options_.one_layer) {
      low_rank(index, kind).reshape(0, 0);  // the next layer may have no adapter there
    }
  }
  return first_byte - begin;
}

std::int64_t Activations::save_final(const RecordPool& pool, std::int64_t first_byte,
                                     IndexList records, Ops& ops) const {
  ops.copy_rows(final_input_.view(), {},
                pool.part(first_byte, final_input_.cols(), final_input_.dtype()), records);
  return final_input_.bytes_per_row();
}

void Activations::load_rows(const RecordPool& pool, std::int64_t first_byte, IndexList records,
                            Ops& ops) {
  TIDEMILL_CHECK(options_.recompute == Recompute::kNone && !options_.one_layer);
  begin_pass(records.size);
  const auto load = [&](DeviceMatrix& part) {
    part.resize_rows(records.size);
    if (part.bytes_per_row() > 0) {
      ops.copy_rows(pool.part(first_byte, part.cols(), part.dtype()), records, part.view(), {});
      first_byte += part.bytes_per_row();
    }
  };
  for (std::size_t i = 0; i < low_rank_.size(); ++i) {
    for_each_part(first_layer_ + static_cast<std::int64_t>(i), load);
  }
  load(final_input_);
}

std::int64_t Activations::size_bytes() const noexcept {
  std::int64_t bytes = memory_.size_bytes() + final_input_.size_bytes() + final_rstd_.size_bytes();
  for (const AttentionActivations& half : attention_) {
    bytes += half.size_bytes();
  }
  for (const MlpActivations& half : mlp_) {
    bytes += half.size_bytes();
  }
  for (const DeviceMatrix& start : start_) {
    bytes += start.size_bytes();
  }
  for (const PerLinear<DeviceMatrix>& layer : low_rank_) {
    for (const LinearKind kind : kLinearKinds) {
      bytes += layer[kind].size_bytes();
    }
  }
  return bytes;
}

std::int64_t Activations::bytes_per_row(const ModelConfig& config, std::int64_t first_layer,
                                        const KeepOptions& options, const AdapterSpec& spec) {
  const std::int64_t layers = config.num_layers - first_layer;
  const auto width = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t attention = attention_size(config).bytes(options.dtype);
  const std::int64_t mlp = mlp_size(config).bytes(options.dtype);
  const std::int64_t last = (config.hidden_size + 1 + low_rank_floats(config, spec)) * width;
  const std::int64_t start = config.hidden_size * width;
  switch (options.recompute) {
    case Recompute::kNone: return layers * (attention + mlp) + last;
    case Recompute::kCheap: return layers * (attention + start) + mlp + last;
    case Recompute::kLayer: break;
  }
  return layers * start + attention + mlp + last;
}

}  // namespace tidemill::engines
