// SPDX-License-Identifier: Apache-2.0
// Small random models with selected features, for tests that need no files.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// The features that select different code paths.
struct ModelFeatures {
  bool tied = false;
  bool biases = false;  // on every linear layer
  bool qk_norm = false;
  bool sliding = false;  // a window of 7 on the last layers
  bool scaled_rope = false;
};

struct FeatureCase {
  std::string name;
  ModelFeatures features;
};
std::ostream& operator<<(std::ostream& out, const FeatureCase& c);
/// Returns cases with none of the features, all of them, and mixtures.
[[nodiscard]] std::vector<FeatureCase> feature_cases();

/// Returns a configuration with 3 layers, hidden size 24, 4 heads and 2 key/value heads of size 8.
[[nodiscard]] ModelConfig small_config(const ModelFeatures& features);

/// Returns weights that are large enough for every part to matter: gains around 1, and biases, all
/// nonzero.
[[nodiscard]] TensorMap random_weights(const ModelConfig& config, std::uint64_t seed);

/// Returns LoRA on every linear layer from `first_layer` on. Ranks and scales differ by layer.
[[nodiscard]] AdapterSpec lora_on_all(const ModelConfig& config, std::int64_t first_layer);
/// Returns nonzero matrices A and B for `spec`, which must be plain LoRA.
[[nodiscard]] TensorMap random_lora(const AdapterSpec& spec, std::uint64_t seed);

/// An adapter configuration that applies one kind of adapter to many modules.
struct AdapterSample {
  std::string name;
  AdapterConfig config;
};
/// Returns a sample of every kind of adapter: plain LoRA, LoRA with replaced biases and with a bias
/// of B, DoRA, IA3, LoRA on the embedding table and the head, whole modules, and norms.
[[nodiscard]] std::vector<AdapterSample> adapter_samples();
/// Returns the spec that `config` describes for `model`.
[[nodiscard]] AdapterSpec spec_of(const AdapterConfig& config, const ModelConfig& model);
/// Returns tensors for `spec` that all differ from the initial values of a new adapter.
[[nodiscard]] TensorMap random_adapter(const AdapterSpec& spec, const ModelConfig& model,
                                       const TensorMap& base, std::uint64_t seed);

/// Returns `length` random tokens.
[[nodiscard]] std::vector<std::int32_t> random_ids(const ModelConfig& config, std::int64_t length,
                                                   RandomStream& random);

}  // namespace tidemill::engines
