// SPDX-License-Identifier: Apache-2.0
// Small random models with chosen features, for tests without files.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "base/tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// The features that change which code runs.
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
/// None of the features, all of them, and mixtures.
[[nodiscard]] std::vector<FeatureCase> feature_cases();

/// A configuration of 3 layers, hidden size 24, 4 heads over 2 key/value heads of size 8.
[[nodiscard]] ModelConfig small_config(const ModelFeatures& features);

/// Weights large enough that every part matters: gains around 1, biases, all nonzero.
[[nodiscard]] TensorMap random_weights(const ModelConfig& config, std::uint64_t seed);

/// LoRA on every linear layer from `first_layer` on, ranks and scales differing by layer.
[[nodiscard]] AdapterSpec lora_on_all(const ModelConfig& config, std::int64_t first_layer);
/// Matrices A and B for `spec`, LoRA alone, both nonzero.
[[nodiscard]] TensorMap random_lora(const AdapterSpec& spec, std::uint64_t seed);

/// An adapter config that has a piece of its own kind in many places.
struct AdapterSample {
  std::string name;
  AdapterConfig config;
};
/// Every kind of adapter: plain LoRA, LoRA with biases replaced and with a bias of B, DoRA, IA3,
/// LoRA on table and head, modules saved whole.
[[nodiscard]] std::vector<AdapterSample> adapter_samples();
/// Returns what `config` comes to on `model`.
[[nodiscard]] AdapterSpec spec_of(const AdapterConfig& config, const ModelConfig& model);
/// Tensors for `spec`, all away from where a fresh adapter starts.
[[nodiscard]] TensorMap random_adapter(const AdapterSpec& spec, const ModelConfig& model,
                                       const TensorMap& base, std::uint64_t seed);

/// Returns `length` random tokens.
[[nodiscard]] std::vector<std::int32_t> random_ids(const ModelConfig& config, std::int64_t length,
                                                   RandomStream& random);

}  // namespace tidemill::engines
