// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/adapter.hpp"

#include <algorithm>
#include <utility>

#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

std::string sizes_of(std::int64_t in, std::int64_t out) {
  return std::to_string(in) + " -> " + std::to_string(out);
}

Status check_features(const AdaptedModule& module, const ModuleSite& site) {
  if (module.in_features != site.in_features || module.out_features != site.out_features) {
    return invalid_argument("adapter module " + module.path + " is " +
                            sizes_of(module.in_features, module.out_features) +
                            ", but the model's layer is " +
                            sizes_of(site.in_features, site.out_features));
  }
  return {};
}

}  // namespace

Result<Adapter::Layout> Adapter::start_layout(const ModelConfig& config, const AdapterSpec& spec,
                                              TensorMap tensors, const ModelWeights& base,
                                              WeightUse use, Ops& ops) {
  if (spec.empty()) {
    return invalid_argument("the adapter has no target module");
  }
  TIDEMILL_RETURN_IF_ERROR(check_tensors(adapter_shapes(spec), tensors, "adapter"));
  Layout layout;
  layout.adapter_.reset(new Adapter);
  layout.adapter_->spec_ = spec;
  layout.adapter_->layers_.resize(static_cast<std::size_t>(config.num_layers));
  layout.adapter_->first_layer_ = config.num_layers;
  layout.tensors_ = std::move(tensors);
  layout.use_ = use;
  layout.ops_ = &ops;
  const auto sites = module_sites(config);
  for (const AdaptedModule& module : spec) {
    const auto site = sites.find(module.path);
    if (site == sites.end()) {
      return invalid_argument("adapter module " + module.path + " is not a layer of the model");
    }
    TIDEMILL_RETURN_IF_ERROR(check_features(module, site->second));
    layout.adapter_->first_layer_ = std::min(layout.adapter_->first_layer_, site->second.layer);
    const DType compute = base.options().compute;
    layout.modules_.push_back(
        {module, site->second,
         BaseWeight{base.tensor(weight_name(config, module.path)),
                    site->second.kind == ModuleSite::Kind::kHead ? head_type(compute) : compute}});
  }
  return layout;
}

Status Adapter::Layout::run() {
  const Module& next = modules_[next_];
  TIDEMILL_RETURN_IF_ERROR(adapter_->add(next.module, next.site, tensors_, next.base, use_, *ops_));
  ++next_;  // a module that failed is prepared again
  return {};
}

Result<std::shared_ptr<const Adapter>> Adapter::create(const ModelConfig& config,
                                                       const AdapterSpec& spec,
                                                       const TensorMap& tensors,
                                                       const ModelWeights& base, WeightUse use,
                                                       Ops& ops) {
  TIDEMILL_ASSIGN_OR_RETURN(Layout layout, start_layout(config, spec, tensors, base, use, ops));
  while (!layout.done()) {
    TIDEMILL_RETURN_IF_ERROR(layout.run());
  }
  return layout.take();
}

Status Adapter::add(const AdaptedModule& module, const ModuleSite& site, const TensorMap& tensors,
                    const BaseWeight& base, WeightUse use, Ops& ops) {
  using Kind = ModuleSite::Kind;
  const bool in_layer = site.kind == Kind::kLinear || site.kind == Kind::kNorm;
  AdaptedLayer* layer = in_layer ? &layers_[static_cast<std::size_t>(site.layer)] : nullptr;
  switch (site.kind) {
    case Kind::kTable: {
      TIDEMILL_ASSIGN_OR_RETURN(embedding_, EmbeddingBypass::create(module, tensors, use, ops));
      size_bytes_ += embedding_->size_bytes();
      break;
    }
    case Kind::kLinear:
    case Kind::kHead: {
      std::optional<LinearBypass>& bypass = in_layer ? layer->linears[site.linear] : head_;
      TIDEMILL_ASSIGN_OR_RETURN(bypass, LinearBypass::create(module, tensors, base, use, ops));
      size_bytes_ += bypass->size_bytes();
      break;
    }
    case Kind::kNorm:
    case Kind::kFinalNorm: {
      PreparedVector& gain = in_layer ? gain_of(*layer, site.norm) : final_gain_;
      TIDEMILL_ASSIGN_OR_RETURN(gain, ops.prepare_vector(float_values(tensors.at(module.weight))));
      size_bytes_ += gain.size_bytes();
      break;
    }
  }
  return {};
}

const LinearBypass* Adapter::bypass(std::int64_t layer, LinearKind kind) const {
  const auto& bypass = layers_[static_cast<std::size_t>(layer)].linears[kind];
  return bypass.has_value() ? &*bypass : nullptr;
}

}  // namespace tidemill::engines
