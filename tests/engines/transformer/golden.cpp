// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/transformer/golden.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/check.hpp"
#include "base/files/tensor_file.hpp"

namespace tidemill::engines {

std::string golden_path(const std::string& name) {
  return std::string(TIDEMILL_TEST_DIR "/golden/engine/") + name;
}

nlohmann::json golden_json(const std::string& name) {
  std::ifstream file(golden_path(name));
  TIDEMILL_CHECK(file.good()) << name;
  return nlohmann::json::parse(file);
}

TensorMap golden_tensors(const std::string& name) {
  return read_tensor_file(golden_path(name), TensorPlacement::kCopied).value().tensors;
}

ModelFiles golden_model(const std::string& name, const std::string& config_file) {
  const std::string folder = golden_path("models/" + name);
  ModelFiles model = open_model(folder).value();
  model.config = read_model_config(folder + "/" + config_file).value();
  return model;
}

std::span<const float> values_of(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  TIDEMILL_CHECK(found != tensors.end()) << name;
  return found->second.data.as<float>();
}

Difference difference(std::span<const float> actual, std::span<const float> expected) {
  DifferenceSum sum;
  sum.add(actual, expected);
  return sum.result();
}

void DifferenceSum::add(std::span<const float> actual, std::span<const float> expected) {
  TIDEMILL_CHECK(actual.size() == expected.size()) << actual.size() << " vs " << expected.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    add(double{actual[i]}, double{expected[i]});
  }
}

void DifferenceSum::add(double actual, double expected) {
  const double d = std::abs(actual - expected);
  max_ = d <= max_ ? max_ : d;  // once NaN, stays NaN
  square_ += d * d;
  ++count_;
}

Difference DifferenceSum::result() const {
  return {max_, count_ == 0 ? 0.0 : std::sqrt(square_ / static_cast<double>(count_))};
}

}  // namespace tidemill::engines
