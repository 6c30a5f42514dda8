// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/lora_spec.hpp"

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/float_tensor.hpp"
#include "base/random.hpp"

namespace tidemill::engines {
namespace {

// FNV-1a: turns a module path into a stream number that never changes between builds.
std::uint64_t stream_of(std::string_view path) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : path) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash;
}

}  // namespace

std::string lora_a_name(std::string_view path) {
  return "base_model.model." + std::string(path) + ".lora_A.weight";
}

std::string lora_b_name(std::string_view path) {
  return "base_model.model." + std::string(path) + ".lora_B.weight";
}

Status check_lora_tensors(const LoraSpec& spec, const TensorMap& tensors) {
  std::set<std::string> known;
  for (const LoraModule& module : spec) {
    const std::string a = lora_a_name(module.path);
    const std::string b = lora_b_name(module.path);
    const std::array a_shape = {module.rank, module.in_features};
    const std::array b_shape = {module.out_features, module.rank};
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(tensors, a, a_shape));
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(tensors, b, b_shape));
    known.insert({a, b});
  }
  for (const auto& [name, tensor] : tensors) {
    if (!known.contains(name)) {
      return invalid_argument("adapter tensor " + name + " is no LoRA matrix of a target module");
    }
  }
  return {};
}

TensorMap init_lora(const LoraSpec& spec, std::uint64_t seed) {
  TensorMap tensors;
  for (const LoraModule& module : spec) {
    RandomStream random(seed, stream_of(module.path));
    const double bound = 1.0 / std::sqrt(static_cast<double>(module.in_features));
    std::vector<float> a(static_cast<std::size_t>(module.rank * module.in_features));
    for (float& value : a) {
      value = static_cast<float>((2.0 * random.uniform() - 1.0) * bound);
    }
    const std::vector<float> b(static_cast<std::size_t>(module.out_features * module.rank));
    tensors[lora_a_name(module.path)] =
        make_float_tensor(a, {module.rank, module.in_features}, DType::kF32);
    tensors[lora_b_name(module.path)] =
        make_float_tensor(b, {module.out_features, module.rank}, DType::kF32);
  }
  return tensors;
}

}  // namespace tidemill::engines
