// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/new_adapter.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engines/peft/adapter_spec.hpp"
#include "engines/transformer/model_weights.hpp"

namespace tidemill::engines {
namespace {

// Fails if a target name selects no layer: a typo would otherwise train less than intended.
Status check_targets(const ModuleSelector& targets, const ModelConfig& model) {
  if (targets.kind != ModuleSelector::Kind::kNames) {
    return {};
  }
  const std::vector<ModelModule> modules = model_modules(model);
  for (const std::string& name : targets.names) {
    if (std::ranges::any_of(modules, [&name](const ModelModule& module) {
          return module.path == name || module.path.ends_with('.' + name);
        })) {
      continue;
    }
    std::string known;
    std::set<std::string> listed;
    for (const ModelModule& module : modules) {
      const std::string last = module.path.substr(module.path.rfind('.') + 1);
      if (listed.insert(last).second) {
        known += known.empty() ? "" : ", ";
        known += last;
      }
    }
    std::string message = "target_modules: `";
    message.append(name).append("` is not a layer of this model; it has ").append(known);
    return invalid_argument(std::move(message));
  }
  return {};
}

// The modules that a new adapter updates, and how.
struct NewAdapter {
  std::vector<AdapterModule> modules;
  AdapterSpec spec;
};

Result<NewAdapter> describe_adapter(const AdapterConfig& config, const ModelConfig& model,
                                    const std::string& location) {
  if (const Status named = check_targets(config.targets, model); !named.ok()) {
    return named.with_context(location);
  }
  NewAdapter adapter;
  TIDEMILL_ASSIGN_OR_RETURN(adapter.modules, resolve_adapter(config, model, location));
  auto spec = adapter_spec(config, adapter.modules, model);
  if (!spec.ok()) {
    return spec.status().with_context(location);
  }
  adapter.spec = std::move(spec).value();
  return adapter;
}

}  // namespace

Status check_new_adapter(const AdapterConfig& config, const ModelConfig& model,
                         const std::string& location) {
  return describe_adapter(config, model, location).status();
}

Result<AdapterFiles> outline_adapter(const AdapterConfig& config, const ModelConfig& model,
                                     const std::string& location) {
  TIDEMILL_ASSIGN_OR_RETURN(NewAdapter described, describe_adapter(config, model, location));
  AdapterFiles adapter;
  adapter.config = config;
  adapter.location = location;
  adapter.modules = std::move(described.modules);
  for (auto& [name, shape] : adapter_shapes(described.spec)) {
    adapter.tensors[name].shape = shape;
  }
  return adapter;
}

Result<std::int64_t> num_low_rank_parameters(const AdapterConfig& config, const ModelConfig& model,
                                             const std::string& location) {
  TIDEMILL_ASSIGN_OR_RETURN(const NewAdapter described, describe_adapter(config, model, location));
  std::int64_t parameters = 0;
  for (const AdaptedModule& module : described.spec) {
    parameters += module.rank * (module.in_features + module.out_features);
  }
  return parameters;
}

Result<AdapterFiles> make_adapter(const AdapterConfig& config, const ModelFiles& model,
                                  DType compute, std::uint64_t seed, std::string location) {
  AdapterFiles adapter;
  adapter.config = config;
  adapter.location = std::move(location);
  TIDEMILL_ASSIGN_OR_RETURN(NewAdapter described,
                            describe_adapter(config, model.config, adapter.location));
  adapter.modules = std::move(described.modules);
  auto tensors = init_adapter(described.spec, model.config, model.tensors, seed,
                              {compute, head_type(compute)});
  if (!tensors.ok()) {
    return tensors.status().with_context(adapter.location);
  }
  adapter.tensors = std::move(tensors).value();
  return adapter;
}

}  // namespace tidemill::engines
