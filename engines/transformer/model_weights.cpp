// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/model_weights.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/block_int8.hpp"
#include "base/check.hpp"
#include "base/float_tensor.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

// Returns the tensor in memory that may be kept.
Tensor kept(const Tensor& tensor, TensorMemory memory) {
  Tensor own = tensor;
  if (memory == TensorMemory::kBorrowed) {
    own.data = Buffer::copy_of(tensor.data.bytes(), tensor.dtype);
  }
  return own;
}

// Returns the tensor with its bytes in memory: a small one of a mapped file is read.
Result<Tensor> in_memory(const Tensor& tensor) {
  if (tensor.data.backing() == Backing::kNone) {
    return tensor;
  }
  const std::size_t size = tensor.data.size_bytes();
  std::vector<std::byte> bytes(size);
  TIDEMILL_RETURN_IF_ERROR(tensor.data.copy_to(0, bytes));
  const Buffer read = Buffer::adopt(std::move(bytes), DType::kU8);
  return Tensor{tensor.dtype, tensor.shape, read.slice(0, size, tensor.dtype)};
}

// Prepares the parts of one model, adding up what they take.
class Preparer {
public:
  Preparer(const TensorMap& tensors, const WeightOptions& options, Ops& ops)
      : tensors_(tensors), options_(options), ops_(ops) {}

  Result<std::unique_ptr<PreparedWeight>> matrix(const std::string& name) {
    return matrix(name, options_.compute);
  }

  Result<std::unique_ptr<PreparedWeight>> matrix(const std::string& name, DType compute) {
    const Tensor& tensor = tensors_.at(name);
    auto prepared = ops_.prepare_weight(weight_view(tensor), compute, options_.use);
    if (!prepared.ok()) {
      return prepared.status().with_context("tensor " + name);
    }
    size_bytes_ += prepared.value()->size_bytes();
    seen_finite_ = seen_finite_ && prepared.value()->seen_finite();
    tensor.data.release_pages();  // what is computed with is the prepared copy
    return prepared;
  }

  // The embedding table: the file's own, beside NF4 in blocks of int8.
  Result<Tensor> table(const std::string& name) {
    const Tensor& tensor = tensors_.at(name);
    if (options_.compute != DType::kNf4 || !is_float_type(tensor.dtype)) {
      return kept(tensor, options_.memory);
    }
    TIDEMILL_ASSIGN_OR_RETURN(Tensor blocks, quantize_blocks(tensor, name));
    tensor.data.release_pages();
    return blocks;
  }

  Result<std::vector<float>> vector(const std::string& name) {
    const Result<Tensor> read = in_memory(tensors_.at(name));
    TIDEMILL_RETURN_IF_ERROR(read.status().with_context("tensor " + name));
    const Tensor& tensor = read.value();
    std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
    widen_floats(tensor, values);
    size_bytes_ += static_cast<std::int64_t>(values.size() * sizeof(float));
    seen_finite_ =
        seen_finite_ && std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
    return values;
  }

  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] bool seen_finite() const noexcept { return seen_finite_; }

private:
  const TensorMap& tensors_;
  const WeightOptions& options_;
  Ops& ops_;
  std::int64_t size_bytes_ = 0;
  bool seen_finite_ = true;
};

Result<LayerWeights> prepare_layer(const ModelConfig& config, std::int64_t index,
                                   Preparer& preparer) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  LayerWeights layer;
  TIDEMILL_ASSIGN_OR_RETURN(layer.input_gain, preparer.vector(prefix + "input_layernorm.weight"));
  TIDEMILL_ASSIGN_OR_RETURN(layer.attention_gain,
                            preparer.vector(prefix + "post_attention_layernorm.weight"));
  if (config.qk_norm) {
    TIDEMILL_ASSIGN_OR_RETURN(layer.query_gain,
                              preparer.vector(prefix + "self_attn.q_norm.weight"));
    TIDEMILL_ASSIGN_OR_RETURN(layer.key_gain, preparer.vector(prefix + "self_attn.k_norm.weight"));
  }
  for (const LinearKind kind : kLinearKinds) {
    const LinearModule module = linear_module(config, index, kind);
    LinearWeights& linear = layer.linears[kind];
    TIDEMILL_ASSIGN_OR_RETURN(linear.weight, preparer.matrix(module.path + ".weight"));
    if (module.bias) {
      TIDEMILL_ASSIGN_OR_RETURN(linear.bias, preparer.vector(module.path + ".bias"));
    }
  }
  return layer;
}

}  // namespace

Result<std::shared_ptr<const ModelWeights>> ModelWeights::create(const ModelConfig& config,
                                                                 const TensorMap& tensors,
                                                                 const WeightOptions& options,
                                                                 Ops& ops) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_tensors(config), tensors, "model"));
  std::shared_ptr<ModelWeights> weights(new ModelWeights);
  weights->options_ = options;
  if (options.keep_tensors) {
    for (const auto& [name, tensor] : tensors) {
      weights->kept_.emplace(name, kept(tensor, options.memory));
    }
  }
  Preparer preparer(tensors, options, ops);
  for (std::int64_t index = 0; index < config.num_layers; ++index) {
    TIDEMILL_ASSIGN_OR_RETURN(LayerWeights layer, prepare_layer(config, index, preparer));
    weights->layers_.push_back(std::move(layer));
  }
  TIDEMILL_ASSIGN_OR_RETURN(weights->embedding_, preparer.table("model.embed_tokens.weight"));
  TIDEMILL_ASSIGN_OR_RETURN(weights->final_gain_, preparer.vector("model.norm.weight"));
  TIDEMILL_ASSIGN_OR_RETURN(
      weights->head_,
      preparer.matrix(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                      head_type(options.compute)));
  weights->size_bytes_ =
      preparer.size_bytes() + static_cast<std::int64_t>(weights->embedding_.data.size_bytes());
  weights->seen_finite_ = preparer.seen_finite();
  return std::shared_ptr<const ModelWeights>(std::move(weights));
}

DType head_type(DType compute) noexcept {
  return compute == DType::kNf4 ? DType::kBlockI8 : compute;
}

const LayerWeights& ModelWeights::layer(std::int64_t index) const {
  return layers_[static_cast<std::size_t>(index)];
}

const Tensor* ModelWeights::tensor(const std::string& name) const {
  const auto found = kept_.find(name);
  return found != kept_.end() ? &found->second : nullptr;
}

WeightView ModelWeights::embedding() const noexcept {
  return weight_view(embedding_);
}

}  // namespace tidemill::engines
