// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/activations.hpp"

#include "base/check.hpp"

namespace tidemill::engines {

Activations::Activations(const ModelConfig& config, std::int64_t first_layer)
    : first_layer_(first_layer) {
  TIDEMILL_CHECK(first_layer >= 0 && first_layer <= config.num_layers) << first_layer;
  layers_.resize(static_cast<std::size_t>(config.num_layers - first_layer));
}

LayerActivations& Activations::layer(std::int64_t index) {
  TIDEMILL_CHECK(index >= first_layer_) << index;
  return layers_[static_cast<std::size_t>(index - first_layer_)];
}

std::int64_t Activations::size_bytes() const noexcept {
  std::int64_t bytes = final_input_.size_bytes() + final_rstd_.size_bytes();
  for (const LayerActivations& layer : layers_) {
    for (const OwnedMatrix* part :
         {&layer.input, &layer.input_rstd, &layer.query, &layer.query_rstd, &layer.key,
          &layer.key_rstd, &layer.attention, &layer.lse, &layer.residual, &layer.residual_rstd,
          &layer.gate, &layer.up}) {
      bytes += part->size_bytes();
    }
  }
  return bytes;
}

std::int64_t Activations::bytes_per_row(const ModelConfig& config,
                                        std::int64_t first_layer) noexcept {
  const std::int64_t query = config.num_heads * config.head_dim;
  std::int64_t per_layer = 2 * (config.hidden_size + 1)    // input and residual, with rstd
                           + 2 * query + config.num_heads  // query, attention, lse
                           + 2 * config.intermediate_size;
  if (config.qk_norm) {
    per_layer += config.num_heads + config.num_kv_heads * (config.head_dim + 1);
  }
  const std::int64_t floats =
      (config.num_layers - first_layer) * per_layer + config.hidden_size + 1;
  return floats * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace tidemill::engines
