// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/model_weights.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

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

// Where weights are laid out from: tensors of a file or a snapshot, or parameters in training.
class Source {
public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;
  // Returns the ranges of rows in which a matrix is laid out.
  virtual std::vector<WeightRows> ranges(const std::string& name) const = 0;
  virtual Result<std::unique_ptr<PreparedWeight>> replace_weight(
      const std::string& name, std::unique_ptr<PreparedWeight> old, WeightRows rows, DType compute,
      WeightUse use, Ops& ops) const = 0;
  virtual Result<std::unique_ptr<PreparedTable>> replace_table(const std::string& name,
                                                               std::unique_ptr<PreparedTable> old,
                                                               WeightRows rows, DType compute,
                                                               Ops& ops) const = 0;
  virtual Result<std::vector<float>> vector(const std::string& name, Ops& ops) const = 0;
};

class TensorSource final : public Source {
public:
  explicit TensorSource(const TensorMap& tensors) : tensors_(tensors) {}

  // Whole matrices.
  std::vector<WeightRows> ranges(const std::string& name) const override {
    return {{0, tensors_.at(name).shape[0]}};
  }

  Result<std::unique_ptr<PreparedWeight>> replace_weight(const std::string& name,
                                                         std::unique_ptr<PreparedWeight> old,
                                                         WeightRows /*rows*/, DType compute,
                                                         WeightUse use, Ops& ops) const override {
    const Tensor& tensor = tensors_.at(name);
    auto prepared = ops.replace_weight(std::move(old), weight_view(tensor), compute, use);
    if (prepared.ok()) {
      tensor.data.release_pages();  // products use the prepared copy
    }
    return prepared;
  }

  // Prepares the table as it is in the file, or quantized to int8 blocks if weights are NF4.
  Result<std::unique_ptr<PreparedTable>> replace_table(const std::string& name,
                                                       std::unique_ptr<PreparedTable> old,
                                                       WeightRows /*rows*/, DType compute,
                                                       Ops& ops) const override {
    old.reset();
    const Tensor& tensor = tensors_.at(name);
    if (compute != DType::kNf4 || !is_float_type(tensor.dtype)) {
      return ops.prepare_table(tensor);
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Tensor blocks, quantize_blocks(tensor, name));
    tensor.data.release_pages();
    return ops.prepare_table(blocks);
  }

  Result<std::vector<float>> vector(const std::string& name, Ops& /*ops*/) const override {
    TIDEMILL_ASSIGN_OR_RETURN(const Tensor tensor, in_memory(tensors_.at(name)));
    return float_values(tensor);
  }

private:
  const TensorMap& tensors_;
};

class ParameterSource final : public Source {
public:
  ParameterSource(const ParameterSet& parameters, DType published)
      : parameters_(parameters), published_(published) {}

  // As many rows at a time as a unit of a training job handles.
  std::vector<WeightRows> ranges(const std::string& name) const override {
    const ConstMatrix all = parameters_.matrix(name);
    const std::int64_t steps = kUnitElements / (all.cols * kFeatureStep);
    const std::int64_t most = std::max<std::int64_t>(1, steps) * kFeatureStep;
    std::vector<WeightRows> ranges;
    for (std::int64_t first = 0; first < all.rows; first += most) {
      ranges.push_back({first, std::min(most, all.rows - first)});
    }
    return ranges;
  }

  Result<std::unique_ptr<PreparedWeight>> replace_weight(const std::string& name,
                                                         std::unique_ptr<PreparedWeight> old,
                                                         WeightRows rows, DType compute,
                                                         WeightUse use, Ops& ops) const override {
    // A layout for bfloat16 products rounds as publishing does.
    TIDEMILL_CHECK(compute == published_) << dtype_name(compute);
    return ops.replace_weight(std::move(old), parameters_.matrix(name), rows, compute, use);
  }

  Result<std::unique_ptr<PreparedTable>> replace_table(const std::string& name,
                                                       std::unique_ptr<PreparedTable> old,
                                                       WeightRows rows, DType /*compute*/,
                                                       Ops& ops) const override {
    return ops.replace_table(std::move(old), parameters_.matrix(name), rows, published_);
  }

  Result<std::vector<float>> vector(const std::string& name, Ops& ops) const override {
    const ConstVector from = parameters_.vector(name);
    std::vector<float> values(static_cast<std::size_t>(from.size));
    TIDEMILL_RETURN_IF_ERROR(ops.read(from, values));
    return float_values(make_float_tensor(values, {from.size}, published_));
  }

private:
  const ParameterSet& parameters_;
  DType published_;
};

}  // namespace

// Prepares the parts of one model and sums their sizes. Each part replaces the same part of an
// older version, if there is one, and reuses its memory. Ranges of a matrix are prepared in order.
class ModelWeights::Preparer {
public:
  Preparer(const Source& source, const WeightOptions& options, Ops& ops)
      : source_(source), options_(options), ops_(ops) {}

  Status matrix(const std::string& name, WeightRows rows, DType compute,
                std::unique_ptr<PreparedWeight>& part) {
    auto prepared =
        source_.replace_weight(name, std::move(part), rows, compute, options_.use, ops_);
    if (!prepared.ok()) {
      return prepared.status().with_context("tensor " + name);
    }
    part = std::move(prepared).value();
    if (rows.first + rows.count == part->out_features()) {
      size_bytes_ += part->size_bytes();
      seen_finite_ = seen_finite_ && part->seen_finite();
    }
    return {};
  }

  Status table(const std::string& name, WeightRows rows, std::unique_ptr<PreparedTable>& part) {
    auto prepared = source_.replace_table(name, std::move(part), rows, options_.compute, ops_);
    TIDEMILL_RETURN_IF_ERROR(prepared.status().with_context("tensor " + name));
    part = std::move(prepared).value();
    if (rows.first + rows.count == part->num_rows()) {
      size_bytes_ += part->size_bytes();
    }
    return {};
  }

  Status vector(const std::string& name, PreparedVector& part) {
    const Result<std::vector<float>> values = source_.vector(name, ops_);
    TIDEMILL_RETURN_IF_ERROR(values.status().with_context("tensor " + name));
    TIDEMILL_ASSIGN_OR_RETURN(part, ops_.prepare_vector(values.value(), std::move(part)));
    size_bytes_ += part.size_bytes();
    seen_finite_ = seen_finite_ &&
                   std::ranges::all_of(values.value(), [](float x) { return std::isfinite(x); });
    return {};
  }

  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] bool seen_finite() const noexcept { return seen_finite_; }

private:
  const Source& source_;
  const WeightOptions& options_;
  Ops& ops_;
  std::int64_t size_bytes_ = 0;
  bool seen_finite_ = true;
};

// Returns new weights with the parts of `old`, if this is the only reference to it.
std::shared_ptr<ModelWeights> ModelWeights::reuse(std::shared_ptr<const ModelWeights> old) {
  std::shared_ptr<ModelWeights> weights(new ModelWeights);
  if (old.use_count() == 1) {
    // Casting const away is valid: this class created the object as non-const.
    *weights = std::move(*std::const_pointer_cast<ModelWeights>(old));
    old.reset();  // nothing but an empty shell
  }
  weights->kept_.clear();
  return weights;
}

// What a layout keeps from part to part. The source names where parts come from.
struct ModelWeights::Layout::State {
  State(const ModelConfig& config, std::unique_ptr<Source> source_in,
        std::shared_ptr<ModelWeights> weights_in, Ops& ops)
      : source(std::move(source_in)),
        weights(std::move(weights_in)),
        preparer(*source, weights->options_, ops) {
    weights->layers_.resize(static_cast<std::size_t>(config.num_layers));
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      add_layer(config, index);
    }
    const bool shares_head = ties_table(config, weights->options_.compute);
    if (shares_head) {
      weights->embedding_.reset();  // it reads the head that is replaced
    } else {
      add("model.embed_tokens.weight", weights->embedding_);
    }
    add("model.norm.weight", weights->final_gain_);
    add(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
        head_type(weights->options_.compute), weights->head_);
    if (shares_head) {
      parts.push_back({[this, &ops] {
                         weights->embedding_ = ops.tied_table(*weights->head_);
                         return Status();
                       },
                       parts.size()});
    }
  }

  void add(const std::string& name, PreparedVector& part) {
    parts.push_back({[this, name, &part] { return preparer.vector(name, part); }, parts.size()});
  }
  void add(const std::string& name, DType compute, std::unique_ptr<PreparedWeight>& part) {
    const std::size_t first = parts.size();
    for (const WeightRows rows : source->ranges(name)) {
      parts.push_back({[this, name, rows, compute, &part] {
                         return preparer.matrix(name, rows, compute, part);
                       },
                       first});
    }
  }
  void add(const std::string& name, std::unique_ptr<PreparedTable>& part) {
    const std::size_t first = parts.size();
    for (const WeightRows rows : source->ranges(name)) {
      parts.push_back(
          {[this, name, rows, &part] { return preparer.table(name, rows, part); }, first});
    }
  }
  // Copies a tensor of `parameters`, to be kept.
  void keep(const ParameterSet& parameters, const ParameterSet::Entry& entry, DType published) {
    const std::size_t first = parts.size();
    const std::int64_t count = num_unit_parts(entry.size);
    for (std::int64_t i = 0; i < count; ++i) {
      parts.push_back({[this, &parameters, &entry, published, i] {
                         return keep_part(parameters, entry, published, i == 0);
                       },
                       first});
    }
  }
  Status keep_part(const ParameterSet& parameters, const ParameterSet::Entry& entry,
                   DType published, bool starts) {
    if (starts) {
      TIDEMILL_ASSIGN_OR_RETURN(copy, parameters.start_copy(entry, published, heap));
    }
    copy->run();
    if (copy->done()) {
      weights->kept_[entry.name] = copy->take();
      copy.reset();
    }
    return {};
  }
  void add_layer(const ModelConfig& config, std::int64_t index) {
    LayerWeights& layer = weights->layers_[static_cast<std::size_t>(index)];
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    add(prefix + "input_layernorm.weight", layer.input_gain);
    add(prefix + "post_attention_layernorm.weight", layer.attention_gain);
    if (config.qk_norm) {
      add(prefix + "self_attn.q_norm.weight", layer.query_gain);
      add(prefix + "self_attn.k_norm.weight", layer.key_gain);
    }
    for (const LinearKind kind : kLinearKinds) {
      const LinearModule module = linear_module(config, index, kind);
      LinearWeights& linear = layer.linears[kind];
      add(module.path + ".weight", weights->options_.compute, linear.weight);
      if (module.bias) {
        add(module.path + ".bias", linear.bias);
      }
    }
  }

  std::unique_ptr<Source> source;
  std::shared_ptr<ModelWeights> weights;
  Preparer preparer;
  struct Part {
    std::function<Status()> run;
    std::size_t first = 0;  // part of the same tensor
  };
  std::vector<Part> parts;
  std::size_t next = 0;
  HeapAllocator heap;
  std::optional<ParameterSet::Copy> copy;  // of the tensor that is being kept
};

ModelWeights::Layout::Layout(std::unique_ptr<State> state) : state_(std::move(state)) {}

ModelWeights::Layout::Layout(Layout&&) noexcept = default;
ModelWeights::Layout& ModelWeights::Layout::operator=(Layout&&) noexcept = default;
ModelWeights::Layout::~Layout() = default;

bool ModelWeights::Layout::done() const noexcept {
  return state_->next == state_->parts.size();
}

Status ModelWeights::Layout::run() {
  const State::Part& part = state_->parts[state_->next];
  if (Status status = part.run(); !status.ok()) {
    state_->next = part.first;  // a tensor that failed is prepared again
    return status;
  }
  ++state_->next;
  return {};
}

std::shared_ptr<const ModelWeights> ModelWeights::Layout::take() {
  ModelWeights& weights = *state_->weights;
  weights.size_bytes_ = state_->preparer.size_bytes();
  weights.seen_finite_ = state_->preparer.seen_finite();
  return std::move(state_->weights);
}

Result<std::shared_ptr<const ModelWeights>> ModelWeights::run_all(Layout layout) {
  while (!layout.done()) {
    TIDEMILL_RETURN_IF_ERROR(layout.run());
  }
  return layout.take();
}

Result<std::shared_ptr<const ModelWeights>> ModelWeights::create(
    const ModelConfig& config, const TensorMap& tensors, const WeightOptions& options, Ops& ops,
    std::shared_ptr<const ModelWeights> old) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_tensors(config), tensors, "model"));
  std::shared_ptr<ModelWeights> weights = reuse(std::move(old));
  weights->options_ = options;
  if (options.keep_tensors) {
    weights->kept_ = tensors;
  }
  return run_all(Layout(std::make_unique<Layout::State>(
      config, std::make_unique<TensorSource>(tensors), std::move(weights), ops)));
}

Result<std::shared_ptr<const ModelWeights>> ModelWeights::create(
    const ModelConfig& config, const ParameterSet& parameters, DType published,
    const WeightOptions& options, Ops& ops, std::shared_ptr<const ModelWeights> old) {
  return run_all(start_layout(config, parameters, published, options, ops, std::move(old)));
}

ModelWeights::Layout ModelWeights::start_layout(const ModelConfig& config,
                                                const ParameterSet& parameters, DType published,
                                                const WeightOptions& options, Ops& ops,
                                                std::shared_ptr<const ModelWeights> old) {
  std::shared_ptr<ModelWeights> weights = reuse(std::move(old));
  weights->options_ = options;
  auto state = std::make_unique<Layout::State>(
      config, std::make_unique<ParameterSource>(parameters, published), std::move(weights), ops);
  if (options.keep_tensors) {
    for (const ParameterSet::Entry& entry : parameters.entries()) {
      state->keep(parameters, entry, published);
    }
  }
  return Layout(std::move(state));
}

DType head_type(DType compute) noexcept {
  return compute == DType::kNf4 ? DType::kBlockI8 : compute;
}

bool ties_table(const ModelConfig& config, DType compute) noexcept {
  return config.tie_word_embeddings && compute == DType::kNf4;
}

const LayerWeights& ModelWeights::layer(std::int64_t index) const {
  return layers_[static_cast<std::size_t>(index)];
}

const Tensor* ModelWeights::tensor(const std::string& name) const {
  const auto found = kept_.find(name);
  return found != kept_.end() ? &found->second : nullptr;
}

}  // namespace tidemill::engines
