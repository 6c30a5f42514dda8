// SPDX-License-Identifier: Apache-2.0
// Golden models and values under tests/golden/engine, and comparisons with them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/tensor/tensor.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {

/// Returns the path of `name` under tests/golden/engine.
[[nodiscard]] std::string golden_path(const std::string& name);
/// Reads a JSON file under tests/golden/engine. A failure ends the test program.
[[nodiscard]] nlohmann::json golden_json(const std::string& name);
/// Reads a tensor file under tests/golden/engine.
[[nodiscard]] TensorMap golden_tensors(const std::string& name);

/// The names of the seven golden models.
inline const std::vector<std::string> kGoldenModels = {
    "llama-bf16-sharded", "llama-linear", "llama-tiny", "qwen2-sliding",
    "qwen2-tiny",         "qwen2-yarn",   "qwen3-tiny"};

/// Loads a model. `config_file` selects one of the spellings of its configuration.
[[nodiscard]] ModelFiles golden_model(const std::string& name,
                                      const std::string& config_file = "config.json");

/// Returns the values of an F32 tensor.
[[nodiscard]] std::span<const float> values_of(const TensorMap& tensors, const std::string& name);

/// The difference between actual and expected values.
struct Difference {
  double max = 0.0;
  double rms = 0.0;
};
[[nodiscard]] Difference difference(std::span<const float> actual, std::span<const float> expected);

/// Accumulates differences over several spans.
class DifferenceSum {
public:
  void add(std::span<const float> actual, std::span<const float> expected);
  void add(double actual, double expected);
  [[nodiscard]] Difference result() const;
  [[nodiscard]] std::size_t count() const { return count_; }

private:
  double max_ = 0.0;
  double square_ = 0.0;
  std::size_t count_ = 0;
};

}  // namespace tidemill::engines
