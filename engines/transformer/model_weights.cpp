// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/model_weights.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

// Returns the tensor in memory that may be kept: a copy if its memory is borrowed.
Tensor kept(const Tensor& tensor, TensorMemory memory) {
  Tensor own = tensor;
  if (memory == TensorMemory::kBorrowed) {
    own.data = Buffer::copy_of(tensor.data.bytes(), tensor.dtype);
  }
  return own;
}

// Returns the tensor with its bytes in memory. Reads them if they are in a mapped file. Used for
// small tensors.
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

// Prepares the parts of one model and sums their sizes. Each part replaces the same part of an
// older version, if there is one, and reuses its memory.
class Preparer {
public:
  Preparer(const TensorMap& tensors, const WeightOptions& options, Ops& ops)
      : tensors_(tensors), options_(options), ops_(ops) {}

  Status matrix(const std::string& name, std::unique_ptr<PreparedWeight>& part) {
    return matrix(name, options_.compute, part);
  }

  Status matrix(const std::string& name, DType compute, std::unique_ptr<PreparedWeight>& part) {
    const Tensor& tensor = tensors_.at(name);
    auto prepared =
        ops_.replace_weight(std::move(part), weight_view(tensor), compute, options_.use);
    if (!prepared.ok()) {
      return prepared.status().with_context("tensor " + name);
    }
    part = std::move(prepared).value();
    size_bytes_ += part->size_bytes();
    seen_finite_ = seen_finite_ && part->seen_finite();
    tensor.data.release_pages();  // products use the prepared copy
    return {};
  }

  // Sets the embedding table: as in the file, or quantized to int8 blocks if weights are NF4. A
  // borrowed table is copied to `memory`.
  Status table(const std::string& name, Tensor& part, TableMemory& memory) {
    const Tensor& tensor = tensors_.at(name);
    part = tensor;
    if (options_.compute == DType::kNf4 && is_float_type(tensor.dtype)) {
      TIDEMILL_ASSIGN_OR_RETURN(part, quantize_blocks(tensor, name));
      tensor.data.release_pages();
    } else if (options_.memory == TensorMemory::kBorrowed) {
      part.data = memory.copy_of(tensor.data);
    }
    return {};
  }

  Status vector(const std::string& name, std::vector<float>& part) {
    const Result<Tensor> read = in_memory(tensors_.at(name));
    TIDEMILL_RETURN_IF_ERROR(read.status().with_context("tensor " + name));
    const Tensor& tensor = read.value();
    part.resize(static_cast<std::size_t>(tensor.num_elements()));
    widen_floats(tensor, part);
    size_bytes_ += static_cast<std::int64_t>(part.size() * sizeof(float));
    seen_finite_ =
        seen_finite_ && std::ranges::all_of(part, [](float x) { return std::isfinite(x); });
    return {};
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

Status prepare_layer(const ModelConfig& config, std::int64_t index, Preparer& preparer,
                     LayerWeights& layer) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  TIDEMILL_RETURN_IF_ERROR(preparer.vector(prefix + "input_layernorm.weight", layer.input_gain));
  TIDEMILL_RETURN_IF_ERROR(
      preparer.vector(prefix + "post_attention_layernorm.weight", layer.attention_gain));
  if (config.qk_norm) {
    TIDEMILL_RETURN_IF_ERROR(preparer.vector(prefix + "self_attn.q_norm.weight", layer.query_gain));
    TIDEMILL_RETURN_IF_ERROR(preparer.vector(prefix + "self_attn.k_norm.weight", layer.key_gain));
  }
  for (const LinearKind kind : kLinearKinds) {
    const LinearModule module = linear_module(config, index, kind);
    LinearWeights& linear = layer.linears[kind];
    TIDEMILL_RETURN_IF_ERROR(preparer.matrix(module.path + ".weight", linear.weight));
    if (module.bias) {
      TIDEMILL_RETURN_IF_ERROR(preparer.vector(module.path + ".bias", linear.bias));
    }
  }
  return {};
}

}  // namespace

Buffer TableMemory::copy_of(const Buffer& from) {
  const std::span<const std::byte> bytes = from.bytes();
  if (bytes_.use_count() != 1 || size_ != bytes.size()) {
    bytes_ = std::make_shared<std::byte[]>(bytes.size());
    size_ = bytes.size();
  }
  std::ranges::copy(bytes, bytes_.get());
  return Buffer::wrap(bytes_, {bytes_.get(), size_}, from.identity().dtype);
}

Result<std::shared_ptr<const ModelWeights>> ModelWeights::create(
    const ModelConfig& config, const TensorMap& tensors, const WeightOptions& options, Ops& ops,
    std::shared_ptr<const ModelWeights> old) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_tensors(config), tensors, "model"));
  std::shared_ptr<ModelWeights> weights(new ModelWeights);
  if (old.use_count() == 1) {
    // Casting const away is valid: this function created the object as non-const.
    *weights = std::move(*std::const_pointer_cast<ModelWeights>(old));
  }
  old.reset();  // freed first: holding both would double peak memory
  weights->options_ = options;
  weights->kept_.clear();
  weights->embedding_ = {};
  if (options.keep_tensors) {
    for (const auto& [name, tensor] : tensors) {
      weights->kept_.emplace(name, kept(tensor, options.memory));
    }
  }
  Preparer preparer(tensors, options, ops);
  weights->layers_.resize(static_cast<std::size_t>(config.num_layers));
  for (std::int64_t index = 0; index < config.num_layers; ++index) {
    TIDEMILL_RETURN_IF_ERROR(
        prepare_layer(config, index, preparer, weights->layers_[static_cast<std::size_t>(index)]));
  }
  TIDEMILL_RETURN_IF_ERROR(
      preparer.table("model.embed_tokens.weight", weights->embedding_, weights->table_memory_));
  TIDEMILL_RETURN_IF_ERROR(preparer.vector("model.norm.weight", weights->final_gain_));
  TIDEMILL_RETURN_IF_ERROR(
      preparer.matrix(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                      head_type(options.compute), weights->head_));
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
