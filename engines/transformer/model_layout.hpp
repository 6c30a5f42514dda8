// SPDX-License-Identifier: Apache-2.0
// The linear layers of a decoder-only transformer, by layer and kind.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// The linear layers of one decoder layer.
enum class LinearKind : std::uint8_t { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown };

inline constexpr std::array kLinearKinds = {
    LinearKind::kQuery, LinearKind::kKey, LinearKind::kValue, LinearKind::kOutput,
    LinearKind::kGate,  LinearKind::kUp,  LinearKind::kDown};

/// One value for each linear layer of a decoder layer.
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

/// A linear layer of a model: its module path and its shape.
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

/// Returns the linear layers of all decoder layers, what adapters may target; layer by layer.
[[nodiscard]] std::vector<LinearModule> linear_modules(const ModelConfig& config);

}  // namespace tidemill::engines
