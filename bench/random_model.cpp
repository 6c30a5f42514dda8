// SPDX-License-Identifier: Apache-2.0
#include "bench/random_model.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace tidemill::bench {
namespace {

using engines::ModelFamily;

struct Preset {
  const char* name;
  ModelFamily family;
  std::int64_t hidden_size;
  std::int64_t num_layers;
  std::int64_t intermediate_size;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t vocab_size;
  std::int64_t max_positions = 4096;
};

// The smallest is for tests, in which long sequences must not take long. The shapes of Qwen3 are
// those of Qwen/Qwen3-0.6B and Qwen/Qwen3-1.7B. The layers of 1b are those of Llama-3.2-1B, whose
// vocabulary is larger.
constexpr Preset kPresets[] = {
    {"0.1m", ModelFamily::kLlama, 64, 1, 192, 1, 1, 64, 384, 16384},
    {"3.7m", ModelFamily::kLlama, 256, 4, 688, 4, 4, 64, 1024},
    {"15m", ModelFamily::kLlama, 320, 8, 864, 5, 5, 64, 8192},
    {"197m", ModelFamily::kLlama, 1024, 16, 2816, 16, 4, 64, 8192},
    {"600m", ModelFamily::kLlama, 1536, 22, 4096, 24, 8, 64, 16384},
    {"1b", ModelFamily::kLlama, 2048, 16, 8192, 32, 8, 64, 8192},
    {"qwen3-0.6b", ModelFamily::kQwen3, 1024, 28, 3072, 16, 8, 128, 151936, 40960},
    {"qwen3-1.7b", ModelFamily::kQwen3, 2048, 28, 6144, 16, 8, 128, 151936, 40960}};

// The standard deviation of a uniform distribution on [-h, h) is h / sqrt(3).
constexpr float kHalfWidth = 0.0346F;

// A fast and reproducible generator. The quality of these random numbers does not matter.
class QuickUniform {
public:
  explicit QuickUniform(std::uint64_t seed) : state_(seed * 2 + 1) {}
  float next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto high = static_cast<std::int32_t>(state_ >> 40U);
    return (static_cast<float>(high) * 0x1p-23F - 1.0F) * kHalfWidth;
  }

private:
  std::uint64_t state_;
};

float stored(float value, float /*as*/) {
  return value;
}
std::uint16_t stored(float value, std::uint16_t /*as*/) {
  return float_to_bf16(value);
}

template <class Element>
Tensor random_tensor(const std::vector<std::int64_t>& shape, DType dtype, std::uint64_t seed) {
  Tensor tensor{dtype, shape, {}};
  std::vector<Element> values(static_cast<std::size_t>(tensor.num_elements()));
  QuickUniform random(seed);
  for (Element& value : values) {
    value = stored(shape.size() == 1 ? 1.0F : random.next(), Element{});
  }
  tensor.data = Buffer::adopt(std::move(values), dtype);
  return tensor;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

Result<engines::ModelConfig> preset_config(const std::string& preset) {
  const auto* found =
      std::ranges::find_if(kPresets, [&](const Preset& one) { return preset == one.name; });
  if (found == std::end(kPresets)) {
    std::string known;
    for (const std::string& name : preset_names()) {
      known += (known.empty() ? "" : ", ") + name;
    }
    return invalid_argument("--preset: must be one of " + known);
  }
  const bool qwen3 = found->family == ModelFamily::kQwen3;
  engines::ModelConfig config;
  config.family = found->family;
  config.vocab_size = found->vocab_size;
  config.hidden_size = found->hidden_size;
  config.intermediate_size = found->intermediate_size;
  config.num_layers = found->num_layers;
  config.num_heads = found->num_heads;
  config.num_kv_heads = found->num_kv_heads;
  config.head_dim = found->head_dim;
  config.tie_word_embeddings = qwen3;
  config.qk_norm = qwen3;
  config.rope.theta = qwen3 ? 1e6 : 1e4;
  config.max_positions = found->max_positions;
  config.rms_norm_eps = qwen3 ? 1e-6 : 1e-5;
  config.sliding_windows.assign(static_cast<std::size_t>(found->num_layers), 0);
  return config;
}

engines::ModelFiles random_model(const engines::ModelConfig& config, DType dtype) {
  engines::ModelFiles model;
  model.config = config;
  model.config.dtype = dtype;
  std::uint64_t seed = 0;
  for (const auto& [name, shape] : engines::expected_tensors(config)) {
    ++seed;
    model.tensors.emplace(name, dtype == DType::kBF16
                                    ? random_tensor<std::uint16_t>(shape, dtype, seed)
                                    : random_tensor<float>(shape, dtype, seed));
  }
  return model;
}

}  // namespace tidemill::bench
