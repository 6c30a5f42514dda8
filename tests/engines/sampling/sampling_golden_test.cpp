// SPDX-License-Identifier: Apache-2.0
// Compares distributions after bias, penalties, temperature and filters, applied in Hugging Face's
// order, with golden data. Format and tolerances: tests/golden/engine/README.md, section 3.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "engines/sampling/sampler.hpp"

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;

constexpr const char* kFolder = TIDEMILL_TEST_DIR "/golden/engine/sampling/";
constexpr int kExpectedCases = 237;

SamplingOptions options_of(const Json& params) {
  SamplingOptions options;
  for (const auto& [name, value] : params.items()) {
    if (name == "temperature") {
      options.temperature = value.get<float>();
    } else if (name == "top_k") {
      options.top_k = value.get<std::int32_t>();
    } else if (name == "top_p") {
      options.top_p = value.get<float>();
    } else if (name == "min_p") {
      options.min_p = value.get<float>();
    } else if (name == "repetition_penalty") {
      options.repetition_penalty = value.get<float>();
    } else if (name == "frequency_penalty") {
      options.frequency_penalty = value.get<float>();
    } else if (name == "presence_penalty") {
      options.presence_penalty = value.get<float>();
    } else if (name == "logit_bias") {
      for (const auto& [token, bias] : value.items()) {
        options.logit_bias.emplace_back(std::stoi(token), bias.get<float>());
      }
    } else {
      EXPECT_TRUE(name == "prompt_ids" || name == "output_ids") << name;
    }
  }
  return options;
}

/// Returns how many tokens a case keeps. The file counts probabilities above 0 in float64. If no
/// filter is set, that count misses tokens more than 745 nats below the best, which are kept.
std::int64_t wanted_kept(const Json& test_case, std::span<const float> logits) {
  const Json& params = test_case.at("params");
  const auto counted = test_case.at("kept").get<std::int64_t>();
  const bool filtered = params.contains("top_k") || params.contains("top_p") ||
                        params.contains("min_p") || params.value("temperature", 1.0) == 0.0;
  if (filtered) {
    return counted;
  }
  const auto finite =
      std::count_if(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
  EXPECT_LE(counted, finite);
  return finite;
}

TEST(SamplingGolden, EveryDistribution) {
  const Result<TensorFile> file =
      read_tensor_file(std::string(kFolder) + "sampling.safetensors", TensorPlacement::kCopied);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const TensorMap& tensors = file.value().tensors;
  std::ifstream stream(std::string(kFolder) + "sampling.json");
  const Json cases = Json::parse(stream).at("cases");
  Sampler sampler;  // shared by all cases, since scratch memory must not affect results
  int checked = 0;
  int near_threshold = 0;
  int below_float = 0;
  double worst = 0.0;
  double worst_big = 0.0;
  for (const Json& test_case : cases) {
    SCOPED_TRACE("case " + test_case.at("id").dump() + ": " + test_case.at("params").dump());
    const std::string name = test_case.at("logits");
    const std::span<const float> logits = tensors.at("logits." + name).data.as<float>();
    const Tensor& golden = tensors.at("probs." + test_case.at("id").dump());
    const std::span<const double> want = golden.data.as<double>();
    const Json& params = test_case.at("params");
    const SamplingOptions options = options_of(params);
    ASSERT_TRUE(validate(options, static_cast<std::int64_t>(logits.size())).ok());
    const auto prompt = params.value("prompt_ids", std::vector<std::int32_t>());
    const auto output = params.value("output_ids", std::vector<std::int32_t>());
    std::vector<float> got(logits.size());
    const Result<std::int64_t> kept = sampler.distribution(logits, options, {prompt, output}, got);
    ASSERT_TRUE(kept.ok()) << kept.status().to_string();
    ASSERT_EQ(got.size(), want.size());

    // The set of kept tokens must be exact, unless a decision is within 1e-6 of its threshold.
    const Json& margin = test_case.at("min_margin");
    const bool decidable = margin.is_null() || margin.get<double>() >= 1e-6;
    near_threshold += decidable ? 0 : 1;
    if (decidable) {
      EXPECT_EQ(kept.value(), wanted_kept(test_case, logits));
    }
    double sum = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (want[i] > 0.0 && want[i] < 1.2e-38) {  // kept, but below the normal floats
        ++below_float;
      } else if (decidable) {
        ASSERT_EQ(got[i] > 0.0F, want[i] > 0.0) << "token " << i;
      }
      const double error = std::abs(static_cast<double>(got[i]) - want[i]);
      double& record = name == "v64_big" ? worst_big : worst;
      record = std::max(record, error);
      sum += static_cast<double>(got[i]);
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
    ++checked;
  }
  std::cout << "golden sampling: " << checked << " cases, " << near_threshold
            << " with a decision within 1e-6 of its threshold, " << below_float
            << " kept probabilities below the normal floats; largest error " << worst
            << ", with logits near 3e4 " << worst_big << "\n";
  RecordProperty("cases", checked);
  EXPECT_EQ(checked, kExpectedCases);
  EXPECT_EQ(near_threshold, 0);
  EXPECT_LE(worst, 1e-6);
  EXPECT_LE(worst_big, 1e-6);
}

}  // namespace
}  // namespace tidemill::engines
