// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tidemill::engines {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// m(x) in the header's comment.
double yarn_magnitude(double factor, double x) {
  return factor <= 1.0 ? 1.0 : 0.1 * x * std::log(factor) + 1.0;
}

double yarn_scaling(const RopeConfig& rope) {
  if (rope.attention_factor) {
    return *rope.attention_factor;
  }
  // Zero counts as absent, as in Transformers.
  if (rope.mscale.value_or(0.0) != 0.0 && rope.mscale_all_dim.value_or(0.0) != 0.0) {
    return yarn_magnitude(rope.factor, *rope.mscale) /
           yarn_magnitude(rope.factor, *rope.mscale_all_dim);
  }
  return yarn_magnitude(rope.factor, 1.0);
}

void scale_llama3(const RopeConfig& rope, std::vector<float>& inverse) {
  const auto context = static_cast<double>(rope.original_max_positions);
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto longest = static_cast<float>(context / rope.low_freq_factor);
  const auto shortest = static_cast<float>(context / rope.high_freq_factor);
  for (float& f : inverse) {
    const float wavelength = static_cast<float>(kTwoPi) / f;
    if (wavelength > longest) {
      f /= factor;
    } else if (wavelength >= shortest) {
      const float share = (static_cast<float>(context) / wavelength - low) / (high - low);
      f = (1.0F - share) * f / factor + share * f;
    }
  }
}

void scale_yarn(const RopeConfig& rope, std::int64_t head_dim, std::vector<float>& inverse) {
  const auto dim = static_cast<double>(head_dim);
  const auto context = static_cast<double>(rope.original_max_positions);
  const auto dimension_of = [&](double beta) {
    return dim * std::log(context / (beta * kTwoPi)) / (2.0 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast);
  double high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;  // avoids division by zero, as in Transformers
  }
  const auto start = static_cast<float>(low);
  const auto width = static_cast<float>(high - low);
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - start) / width, 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float stretched = inverse[i] / static_cast<float>(rope.factor);
    inverse[i] = stretched * (1.0F - kept) + inverse[i] * kept;
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  RopeFrequencies out;
  for (std::int64_t i = 0; i < config.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    out.inverse.push_back(1.0F / std::pow(static_cast<float>(rope.theta), exponent));
  }
  switch (rope.kind) {
    case RopeKind::kDefault: break;
    case RopeKind::kLinear:
      for (float& f : out.inverse) {
        f /= static_cast<float>(rope.factor);
      }
      break;
    case RopeKind::kLlama3: scale_llama3(rope, out.inverse); break;
    case RopeKind::kYarn:
      scale_yarn(rope, config.head_dim, out.inverse);
      out.attention_scaling = static_cast<float>(yarn_scaling(rope));
      break;
  }
  return out;
}

}  // namespace tidemill::engines
