// SPDX-License-Identifier: Apache-2.0
// The modules of a decoder-only transformer that have weights, and their paths in a model.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// The linear layers of one decoder layer.
enum class LinearKind : std::uint8_t { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown };

/// All kinds of linear layers, in the order of the enumeration.
inline constexpr std::array kLinearKinds = {
    LinearKind::kQuery, LinearKind::kKey, LinearKind::kValue, LinearKind::kOutput,
    LinearKind::kGate,  LinearKind::kUp,  LinearKind::kDown};

/// Holds one value for each linear layer of a decoder layer.
template <class T>
class PerLinear {
public:
  [[nodiscard]] T& operator[](LinearKind kind) { return values_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] const T& operator[](LinearKind kind) const {
    return values_[static_cast<std::size_t>(kind)];
  }

private:
  std::array<T, kLinearKinds.size()> values_{};
};

/// Describes a linear layer of a model: its module path and its shape.
struct LinearModule {
  std::string path;  // e.g. "model.layers.0.self_attn.q_proj"
  std::int64_t layer = 0;
  LinearKind kind = LinearKind::kQuery;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = false;
};

/// Returns the linear layer of `kind` in decoder layer `layer`.
[[nodiscard]] LinearModule linear_module(const ModelConfig& config, std::int64_t layer,
                                         LinearKind kind);

/// Returns the linear layers of all decoder layers, which adapters may target, in layer order.
[[nodiscard]] std::vector<LinearModule> linear_modules(const ModelConfig& config);

/// The norms of one decoder layer.
enum class NormKind : std::uint8_t { kInput, kAttention, kQuery, kKey };

/// All kinds of norms, in the order of the enumeration.
inline constexpr std::array kNormKinds = {NormKind::kInput, NormKind::kAttention, NormKind::kQuery,
                                          NormKind::kKey};

/// Returns the gain of the norm of that kind in a struct that describes one decoder layer.
template <class Layer>
[[nodiscard]] auto& gain_of(Layer& layer, NormKind kind) noexcept {
  switch (kind) {
    case NormKind::kAttention: return layer.attention_gain;
    case NormKind::kQuery: return layer.query_gain;
    case NormKind::kKey: return layer.key_gain;
    case NormKind::kInput: break;
  }
  return layer.input_gain;
}

/// Describes the position of a module in a model.
struct ModuleSite {
  enum class Kind : std::uint8_t { kTable, kLinear, kNorm, kFinalNorm, kHead };
  Kind kind = Kind::kLinear;
  std::int64_t layer = 0;  // the table: 0; the final norm and the head: the number of layers
  LinearKind linear = LinearKind::kQuery;  // for kLinear
  NormKind norm = NormKind::kInput;        // for kNorm
  std::int64_t in_features = 0;            // the table: vocabulary size; a norm: its size
  std::int64_t out_features = 0;
};

/// Returns every module that has weights, by path.
[[nodiscard]] std::map<std::string, ModuleSite> module_sites(const ModelConfig& config);

}  // namespace tidemill::engines
