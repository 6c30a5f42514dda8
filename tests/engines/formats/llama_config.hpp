// SPDX-License-Identifier: Apache-2.0
// The config of a small model for tests of GGUF files.
#pragma once

#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// Returns the config of a llama model with biases on every layer and heads of 32. All its matrices
/// can be quantized to blocks.
inline ModelConfig llama_config() {
  ModelConfig config;
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  config.max_positions = 128;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.sliding_windows = {0, 0};
  config.eos_token_ids = {3};
  return config;
}

}  // namespace tidemill::engines
