// SPDX-License-Identifier: Apache-2.0
// Initializes the tensors of new adapters.
#include <cmath>
#include <utility>

#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/ops/weight_elements.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {
namespace {

// Returns the FNV-1a hash of a module path. As a stream number, it is the same in every build.
std::uint64_t stream_of(std::string_view path) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : path) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash;
}

Tensor filled(const std::vector<std::int64_t>& shape, float value) {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) {
    size *= extent;
  }
  return make_float_tensor(std::vector<float>(static_cast<std::size_t>(size), value), shape,
                           DType::kF32);
}

// Returns the random values of A of a linear layer, or of B of the embedding table.
std::vector<float> random_values(const AdaptedModule& module, std::uint64_t seed) {
  RandomStream random(seed, stream_of(module.path));
  const bool table = module.path == kTablePath;
  const std::int64_t width = table ? module.out_features : module.in_features;
  const double bound = 1.0 / std::sqrt(static_cast<double>(width));
  std::vector<float> values(static_cast<std::size_t>(module.rank * width));
  for (float& value : values) {
    value = static_cast<float>(table ? random.normal() : (2.0 * random.uniform() - 1.0) * bound);
  }
  return values;
}

class AdapterInitializer {
public:
  AdapterInitializer(const ModelConfig& model, const TensorMap& base, const BaseTypes& types)
      : model_(model), base_(base), types_(types) {}

  Status add(const AdaptedModule& module, const TensorShapes& shapes, std::uint64_t seed) {
    for (const std::string* zero : {&module.a, &module.b, &module.c}) {
      if (!zero->empty()) {
        tensors_[*zero] = filled(shapes.at(*zero), 0.0F);
      }
    }
    for (const std::string* one : {&module.input_scale, &module.output_scale}) {
      if (!one->empty()) {
        tensors_[*one] = filled(shapes.at(*one), 1.0F);
      }
    }
    if (module.rank > 0) {
      const std::string& name = module.path == kTablePath ? module.b : module.a;
      tensors_[name] = make_float_tensor(random_values(module, seed), shapes.at(name), DType::kF32);
    }
    TIDEMILL_RETURN_IF_ERROR(copy(module.path + ".bias", module.bias, shapes));
    TIDEMILL_RETURN_IF_ERROR(copy(weight_name(model_, module.path), module.weight, shapes));
    return module.magnitude.empty() ? Status() : add_magnitude(module);
  }

  TensorMap take() { return std::move(tensors_); }

private:
  Status copy(const std::string& from, const std::string& name, const TensorShapes& shapes) {
    if (name.empty()) {
      return {};
    }
    const auto& shape = shapes.at(name);
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(base_, from, shape).with_context("base model"));
    tensors_[name] = make_float_tensor(float_values(base_.at(from)), shape, DType::kF32);
    return {};
  }

  Status add_magnitude(const AdaptedModule& module) {
    const std::string name = weight_name(model_, module.path);
    const std::vector<std::int64_t> shape = {module.out_features, module.in_features};
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(base_, name, shape).with_context("base model"));
    const BaseWeight weight{&base_.at(name),
                            module.path == kHeadPath ? types_.head : types_.layers};
    TIDEMILL_RETURN_IF_ERROR(check_preparable(weight_view(*weight.tensor), weight.compute)
                                 .with_context("base model: tensor " + name));
    tensors_[module.magnitude] = make_float_tensor(
        adapted_row_norms(module, weight, tensors_.at(module.a), tensors_.at(module.b)),
        {module.out_features}, DType::kF32);
    return {};
  }

  const ModelConfig& model_;
  const TensorMap& base_;
  const BaseTypes& types_;
  TensorMap tensors_;
};

}  // namespace

Result<TensorMap> init_adapter(const AdapterSpec& spec, const ModelConfig& model,
                               const TensorMap& base, std::uint64_t seed, const BaseTypes& types) {
  const TensorShapes shapes = adapter_shapes(spec);
  AdapterInitializer initializer(model, base, types);
  for (const AdaptedModule& module : spec) {
    TIDEMILL_RETURN_IF_ERROR(initializer.add(module, shapes, seed));
  }
  return initializer.take();
}

}  // namespace tidemill::engines
