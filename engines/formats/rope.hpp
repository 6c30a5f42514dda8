// SPDX-License-Identifier: Apache-2.0
// Computes the rotation frequencies of the rotary position embedding.
#pragma once

#include <vector>

#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// The frequencies of a model. At position p, pair i is rotated by p * inverse[i] radians.
struct RopeFrequencies {
  std::vector<float> inverse;      // head_dim / 2
  float attention_scaling = 1.0F;  // multiplies cosine and sine; 1 unless yarn
};

/// Computes the frequencies, in single precision as Transformers does.
///
/// With C = head_dim, f_i = theta^(-2i/C) and wavelength w_i = 2 pi / f_i:
/// - default: f_i. linear: f_i / factor.
/// - llama3, where L is the original context: f_i if w_i < L / high_freq_factor, f_i / factor if
///   w_i > L / low_freq_factor, otherwise (1 - s) f_i / factor + s f_i with
///   s = (L / w_i - low_freq_factor) / (high_freq_factor - low_freq_factor).
/// - yarn: f_i / factor + (f_i - f_i / factor) (1 - r_i), where r_i is a ramp from 0 to 1 between
///   the dimensions C ln(L / (2 pi beta)) / (2 ln theta) for beta = beta_fast and beta_slow,
///   rounded outward. attention_scaling is attention_factor if given, else m(mscale) /
///   m(mscale_all_dim) if both are given, else m(1), with m(x) = 0.1 x ln(factor) + 1, and m = 1 if
///   factor <= 1.
/// Source: huggingface/transformers, modeling_rope_utils.py; Peng et al. 2023, arXiv:2309.00071.
/// Threads: pure function.
[[nodiscard]] RopeFrequencies rope_frequencies(const ModelConfig& config);

}  // namespace tidemill::engines
