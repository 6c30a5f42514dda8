// SPDX-License-Identifier: Apache-2.0
// Fuzzes config.json, and parses the same text as generation_config.json.
#include "engines/formats/model_config.hpp"

#include <algorithm>
#include <cmath>

#include "engines/formats/model_files.hpp"
#include "engines/formats/rope.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {

void model_config(std::string_view input) {
  constexpr std::int64_t kFewLayers = 4;  // listing the tensors of many layers takes too long
  const auto generation = engines::parse_generation_config(input, "FILE");
  if (!generation.ok()) {
    require_refusal(generation.status(), "FILE: ");
  }
  const auto config = engines::parse_model_config(input, "FILE");
  if (!config.ok()) {
    require_refusal(config.status(), "FILE: ");
    return;
  }
  const auto again = engines::parse_model_config(model_config_text(config.value()), "AGAIN");
  require_ok(again.status(), "a written config can be read");
  require(again.value() == config.value(), "a config survives a round trip");
  if (config.value().num_layers <= kFewLayers) {
    require(engines::num_parameters(config.value()) > 0, "parameters can be counted");
  }
  const engines::RopeFrequencies rope = engines::rope_frequencies(config.value());
  const auto is_finite = [](float f) { return std::isfinite(f); };
  require(std::all_of(rope.inverse.begin(), rope.inverse.end(), is_finite) &&
              std::isfinite(rope.attention_scaling),
          "rotation frequencies are finite");
}

}  // namespace tidemill::fuzz
