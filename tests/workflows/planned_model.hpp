// SPDX-License-Identifier: Apache-2.0
// A model for tests that plan memory.
#pragma once

#include "engines/formats/model_files.hpp"

namespace tidemill::workflows {

/// Returns a model of two layers with random weights and room for 128 positions.
inline engines::ModelFiles planned_model() {
  engines::ModelFiles model;
  engines::ModelConfig& config = model.config;
  config.vocab_size = 1024;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.max_positions = 128;
  config.sliding_windows = {0, 0};
  model.tensors = engines::random_model_tensors(config, 1);
  return model;
}

}  // namespace tidemill::workflows
