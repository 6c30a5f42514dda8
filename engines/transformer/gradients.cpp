// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/gradients.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// Return a view of the tensor `name`, null or empty if `name` is empty.
Matrix matrix_of(const std::string& name, ParameterSet& sums) {
  return name.empty() ? Matrix() : sums.matrix(name);
}
Vector vector_of(const std::string& name, ParameterSet& sums) {
  return name.empty() ? Vector() : sums.vector(name);
}

LinearGradient linear_gradient(const AdaptedModule& module, ParameterSet& sums) {
  LinearGradient gradient;
  gradient.weight = matrix_of(module.weight, sums);
  gradient.bias = vector_of(module.bias, sums);
  gradient.a = matrix_of(module.a, sums);
  gradient.b = matrix_of(module.b, sums);
  gradient.c = vector_of(module.c, sums);
  gradient.magnitude = vector_of(module.magnitude, sums);
  gradient.input_scale = vector_of(module.input_scale, sums);
  gradient.output_scale = vector_of(module.output_scale, sums);
  return gradient;
}

}  // namespace

std::int64_t first_trained_layer(const ModelConfig& config, const AdapterSpec& spec) {
  if (spec.empty()) {
    return 0;
  }
  const auto sites = module_sites(config);
  std::int64_t first = config.num_layers;
  for (const AdaptedModule& module : spec) {
    first = std::min(first, sites.at(module.path).layer);
  }
  return first;
}

Result<Matrix> Gradients::zeros(DeviceMatrix& matrix, std::int64_t rows, std::int64_t cols) {
  TIDEMILL_RETURN_IF_ERROR(matrix.reserve(rows, cols));
  const Matrix view = matrix.reshape(rows, cols);
  ops_->fill(0.0F, view);
  return view;
}

Result<Gradients> Gradients::for_model(const ModelConfig& config, Ops& ops) {
  TIDEMILL_ASSIGN_OR_RETURN(ParameterSet zeros,
                            ParameterSet::create(expected_tensors(config), ops));
  Gradients gradients(std::move(zeros), ops);
  gradients.trains_model_ = true;
  ParameterSet& sums = gradients.sums_;
  for (std::int64_t index = 0; index < config.num_layers; ++index) {
    LayerGradients& layer = gradients.layers_.emplace_back();
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    layer.input_gain = sums.vector(prefix + "input_layernorm.weight");
    layer.attention_gain = sums.vector(prefix + "post_attention_layernorm.weight");
    if (config.qk_norm) {
      layer.query_gain = sums.vector(prefix + "self_attn.q_norm.weight");
      layer.key_gain = sums.vector(prefix + "self_attn.k_norm.weight");
    }
    for (const LinearKind kind : kLinearKinds) {
      const LinearModule module = linear_module(config, index, kind);
      layer.linears[kind].weight = sums.matrix(module.path + ".weight");
      if (module.bias) {
        layer.linears[kind].bias = sums.vector(module.path + ".bias");
      }
    }
  }
  gradients.final_gain_ = sums.vector("model.norm.weight");
  gradients.embedding_.table = sums.matrix("model.embed_tokens.weight");
  if (config.tie_word_embeddings) {
    TIDEMILL_ASSIGN_OR_RETURN(
        gradients.head_.weight,
        gradients.zeros(gradients.tied_head_, config.vocab_size, config.hidden_size));
  } else {
    gradients.head_.weight = sums.matrix("lm_head.weight");
  }
  return gradients;
}

Result<Gradients> Gradients::for_adapter(const ModelConfig& config, const AdapterSpec& spec,
                                         Ops& ops) {
  TIDEMILL_CHECK(!spec.empty());
  using Kind = ModuleSite::Kind;
  TIDEMILL_ASSIGN_OR_RETURN(ParameterSet zeros, ParameterSet::create(adapter_shapes(spec), ops));
  Gradients gradients(std::move(zeros), ops);
  ParameterSet& sums = gradients.sums_;
  gradients.layers_.resize(static_cast<std::size_t>(config.num_layers));
  gradients.first_layer_ = first_trained_layer(config, spec);
  const auto sites = module_sites(config);
  for (const AdaptedModule& module : spec) {
    const auto found = sites.find(module.path);
    TIDEMILL_CHECK(found != sites.end()) << module.path;
    const ModuleSite& site = found->second;
    switch (site.kind) {
      case Kind::kLinear:
        gradients.layer(site.layer).linears[site.linear] = linear_gradient(module, sums);
        break;
      case Kind::kHead: gradients.head_ = linear_gradient(module, sums); break;
      case Kind::kNorm:
        gain_of(gradients.layer(site.layer), site.norm) = sums.vector(module.weight);
        break;
      case Kind::kFinalNorm: gradients.final_gain_ = sums.vector(module.weight); break;
      case Kind::kTable:
        gradients.embedding_.table = matrix_of(module.weight, sums);
        gradients.embedding_.b = matrix_of(module.b, sums);
        if (module.rank > 0) {
          gradients.embedding_a_ = sums.matrix(module.a);
          TIDEMILL_ASSIGN_OR_RETURN(
              gradients.embedding_.transposed_a,
              gradients.zeros(gradients.transposed_a_, module.in_features, module.rank));
        }
        break;
    }
  }
  return gradients;
}

// Goes through the rows of one matrix after the other, as many at a time as a unit handles.
class Gradients::RowUnits final : public UnitSequence {
public:
  struct Part {
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::function<void(std::int64_t first, std::int64_t count)> run;  // on rows [first, + count)
  };

  explicit RowUnits(std::vector<Part> parts) : parts_(std::move(parts)) {}

  [[nodiscard]] bool done() const override { return next_ == parts_.size(); }
  void run() override {
    const Part& part = parts_[next_];
    const std::int64_t most = std::max<std::int64_t>(1, kUnitElements / part.cols);
    const std::int64_t count = std::min(most, part.rows - row_);
    part.run(row_, count);
    row_ += count;
    if (row_ == part.rows) {
      ++next_;
      row_ = 0;
    }
  }

private:
  std::vector<Part> parts_;
  std::size_t next_ = 0;
  std::int64_t row_ = 0;  // in that part
};

std::unique_ptr<UnitSequence> Gradients::start_collect() {
  std::vector<RowUnits::Part> parts;
  if (tied_head_.rows() > 0) {
    parts.push_back({tied_head_.rows(), tied_head_.cols(), [this](auto first, auto count) {
                       const Matrix rows = tied_head_.view().slice_rows(first, count);
                       ops_->add_scaled(rows, 1.0F, embedding_.table.slice_rows(first, count));
                       ops_->fill(0.0F, rows);
                     }});
  }
  if (transposed_a_.rows() > 0) {
    parts.push_back({transposed_a_.rows(), transposed_a_.cols(), [this](auto first, auto count) {
                       const Matrix rows = transposed_a_.view().slice_rows(first, count);
                       ops_->add_transposed(rows, embedding_a_.slice_cols(first, count));
                       ops_->fill(0.0F, rows);
                     }});
  }
  return std::make_unique<RowUnits>(std::move(parts));
}

std::unique_ptr<UnitSequence> Gradients::start_zero() {
  std::vector<RowUnits::Part> parts;
  parts.push_back(
      {sums_.values().size, 1, [this](auto first, auto count) { sums_.set_zero(first, count); }});
  for (const DeviceMatrix* apart : {&tied_head_, &transposed_a_}) {
    if (apart->rows() > 0) {
      parts.push_back({apart->rows(), apart->cols(), [this, apart](auto first, auto count) {
                         ops_->fill(0.0F, apart->view().slice_rows(first, count));
                       }});
    }
  }
  return std::make_unique<RowUnits>(std::move(parts));
}

ParameterSet& Gradients::collect() {
  run_all(*start_collect());
  return sums_;
}

void Gradients::set_zero() {
  run_all(*start_zero());
}

LayerGradients& Gradients::layer(std::int64_t index) {
  return layers_[static_cast<std::size_t>(index)];
}

std::int64_t Gradients::size_bytes() const noexcept {
  return sums_.values().size * std::int64_t{sizeof(float)} + tied_head_.size_bytes() +
         transposed_a_.size_bytes();
}

}  // namespace tidemill::engines
