// SPDX-License-Identifier: Apache-2.0
// Compares AdamW with global-norm clipping step by step with golden data of PyTorch. Format and
// tolerances: tests/golden/engine/README.md, section 4.
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "engines/optimizer/adamw.hpp"
#include "engines/optimizer/gradient_norm.hpp"

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;

constexpr const char* kStem = TIDEMILL_TEST_DIR "/golden/engine/training/adamw_only";

template <class Real>
struct Parameter {
  std::vector<Real> weights, gradient, first, second;
};

/// Returns the largest error as a share of the largest expected value.
template <class Real>
double relative_error(const std::vector<Real>& got, std::span<const double> want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0.0;
  double scale = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(got[i]) - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return scale == 0.0 ? error : error / scale;
}

/// Runs all configurations and returns the largest error. Adds the compared tensors to `compared`.
template <class Real>
double run(const Json& description, const TensorMap& tensors, int& compared) {
  const auto floats = [&](const std::string& name) {
    const std::span<const float> values = tensors.at(name).data.as<float>();
    return std::vector<Real>(values.begin(), values.end());
  };
  double worst = 0.0;
  const Json& configs = description.at("configs");
  for (std::size_t c = 0; c < configs.size(); ++c) {
    const std::string prefix = std::to_string(c) + ".";
    const AdamWOptions options{configs[c].at("betas")[0], configs[c].at("betas")[1],
                               configs[c].at("eps")};
    const double max_norm =
        configs[c].at("clip").is_null() ? 0.0 : configs[c].at("clip").get<double>();
    std::map<std::string, Parameter<Real>> parameters;
    for (const auto& [name, shape] : description.at("params").items()) {
      Parameter<Real>& parameter = parameters[name];
      parameter.weights = floats(prefix + "init." + name);
      parameter.first.assign(parameter.weights.size(), Real{0});
      parameter.second.assign(parameter.weights.size(), Real{0});
    }
    for (int s = 0; s < description.at("steps").get<int>(); ++s) {
      double squares = 0.0;
      for (auto& [name, parameter] : parameters) {
        parameter.gradient = floats(prefix + "grad" + std::to_string(s) + "." + name);
        squares += squared_norm<Real>(parameter.gradient);
      }
      const AdamWStep step{configs[c].at("lr"), configs[c].at("weight_decay"),
                           clip_scale(std::sqrt(squares), max_norm), s + 1};
      for (auto& [name, parameter] : parameters) {
        adamw_update<Real>(
            adamw_factors<Real>(options, step),
            {parameter.weights, parameter.gradient, parameter.first, parameter.second});
        const std::string key = prefix + "step" + std::to_string(s) + "." + name;
        const auto want = [&](const std::string& suffix) {
          return tensors.at(key + suffix).data.template as<double>();
        };
        worst = std::max({worst, relative_error(parameter.weights, want("")),
                          relative_error(parameter.first, want(".exp_avg")),
                          relative_error(parameter.second, want(".exp_avg_sq"))});
        compared += 3;
      }
    }
  }
  return worst;
}

TEST(AdamWGolden, FiveStepsOfThreeConfigurations) {
  std::ifstream stream(std::string(kStem) + ".json");
  const Json description = Json::parse(stream);
  const Result<TensorFile> file =
      read_tensor_file(std::string(kStem) + ".safetensors", TensorPlacement::kCopied);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  int compared = 0;
  const double worst_f64 = run<double>(description, file.value().tensors, compared);
  const double worst_f32 = run<float>(description, file.value().tensors, compared);
  std::cout << "golden adamw_only: " << compared
            << " tensors compared, largest error relative to the tensor: float64 " << worst_f64
            << ", float32 " << worst_f32 << "\n";
  RecordProperty("tensors", compared);
  EXPECT_EQ(compared, 2 * 3 * 5 * 3 * 3);  // reals, configs, steps, parameters, state tensors
  EXPECT_LE(worst_f64, 1e-12);
  EXPECT_LE(worst_f32, 1e-6);
}

}  // namespace
}  // namespace tidemill::engines
