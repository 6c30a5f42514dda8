// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/lora_spec.hpp"

#include <cmath>
#include <utility>

#include "base/float_tensor.hpp"
#include "base/random.hpp"
#include "engines/formats/adapter_files.hpp"

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
  return std::string(kAdapterPrefix) + std::string(path) + ".lora_A.weight";
}

std::string lora_b_name(std::string_view path) {
  return std::string(kAdapterPrefix) + std::string(path) + ".lora_B.weight";
}

Result<LoraSpec> lora_spec(const AdapterConfig& config, const std::vector<AdapterModule>& modules) {
  const auto unsupported = [](const std::string& what) {
    return Status(Errc::kUnimplemented, what + " is not supported yet");
  };
  if (config.kind != AdapterKind::kLora) {
    return unsupported("peft_type IA3");
  }
  if (config.use_dora) {
    return unsupported("use_dora");
  }
  if (config.bias != AdapterBias::kNone) {
    return unsupported("bias other than \"none\"");
  }
  if (config.lora_bias) {
    return unsupported("lora_bias");
  }
  if (!config.modules_to_save.empty()) {
    return unsupported("modules_to_save");
  }
  LoraSpec spec;
  for (const AdapterModule& adapted : modules) {
    const ModelModule& module = adapted.module;
    if (module.is_embedding || module.path == "lm_head") {
      return unsupported("target module " + module.path);
    }
    spec.push_back({module.path, module.in_features, module.out_features, adapted.rank,
                    static_cast<float>(adapted.scale)});
  }
  return spec;
}

Status check_lora_training(const AdapterConfig& config) {
  if (config.dropout != 0.0) {
    return {Errc::kUnimplemented,
            "lora_dropout: training with other than 0 is not supported; set it to 0"};
  }
  return {};
}

TensorShapes lora_shapes(const LoraSpec& spec) {
  TensorShapes shapes;
  for (const LoraModule& module : spec) {
    shapes[lora_a_name(module.path)] = {module.rank, module.in_features};
    shapes[lora_b_name(module.path)] = {module.out_features, module.rank};
  }
  return shapes;
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
