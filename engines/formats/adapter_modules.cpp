// SPDX-License-Identifier: Apache-2.0
// Determines which modules of a model an adapter changes, and with what rank and scale.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/text/quote.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/module_pattern.hpp"

namespace tidemill::engines {
namespace {

// Returns whether `path` is `name` or ends with "." and `name`.
bool ends_with_name(const std::string& path, const std::string& name) {
  return path == name || path.ends_with("." + name);
}

// A selector with its pattern compiled.
class Selection {
public:
  static Result<Selection> make(const ModuleSelector& selector) {
    Selection selection(selector);
    if (selector.kind == ModuleSelector::Kind::kRegex) {
      TIDEMILL_ASSIGN_OR_RETURN(selection.pattern_, ModulePattern::compile(selector.regex));
    }
    return selection;
  }

  [[nodiscard]] Result<bool> selects(const ModelModule& module) const {
    switch (selector_->kind) {
      case ModuleSelector::Kind::kRegex: return pattern_->matches_whole(module.path);
      case ModuleSelector::Kind::kAllLinear:
        return !module.is_embedding && module.path != "lm_head";
      case ModuleSelector::Kind::kNames: break;
    }
    return std::any_of(selector_->names.begin(), selector_->names.end(),
                       [&module](const auto& name) { return ends_with_name(module.path, name); });
  }

  // Returns whether one of the names is the whole path.
  [[nodiscard]] bool names_exactly(const ModelModule& module) const {
    const auto& names = selector_->names;
    return std::find(names.begin(), names.end(), module.path) != names.end();
  }

private:
  explicit Selection(const ModuleSelector& selector) : selector_(&selector) {}
  const ModuleSelector* selector_;
  std::optional<ModulePattern> pattern_;
};

// The patterns of `rank_pattern` or `alpha_pattern`. The first one that matches applies.
template <class T>
class Overrides {
public:
  static Result<Overrides> make(const std::vector<std::pair<std::string, T>>& entries) {
    Overrides out;
    for (const auto& [key, value] : entries) {
      TIDEMILL_ASSIGN_OR_RETURN(ModulePattern pattern,
                                ModulePattern::compile("(.*\\.)?(" + key + ")$"));
      out.rows_.emplace_back(std::move(pattern), value);
    }
    return out;
  }

  [[nodiscard]] Result<T> value_for(const std::string& path, T fallback) const {
    for (const auto& [pattern, value] : rows_) {
      TIDEMILL_ASSIGN_OR_RETURN(const bool hit, pattern.matches_whole(path));
      if (hit) {
        return value;
      }
    }
    return fallback;
  }

private:
  std::vector<std::pair<ModulePattern, T>> rows_;
};

// Applies `layers_to_transform` and `layers_pattern`.
class LayerFilter {
public:
  static Result<LayerFilter> make(const AdapterConfig& config) {
    LayerFilter filter(config);
    std::vector<std::string> names = config.layers_pattern;
    if (names.empty()) {
      names.emplace_back("[^.]*");
    }
    for (const std::string& name : names) {
      TIDEMILL_ASSIGN_OR_RETURN(ModulePattern pattern,
                                ModulePattern::compile(".*\\." + name + "\\.(\\d+)\\."));
      filter.patterns_.push_back(std::move(pattern));
    }
    return filter;
  }

  [[nodiscard]] Result<bool> allows(const std::string& path) const {
    if (!config_->layers_to_transform) {
      return true;
    }
    for (const ModulePattern& pattern : patterns_) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::optional<std::string> number, pattern.first_group(path));
      if (number) {
        std::int64_t layer = -1;
        std::from_chars(number->data(), number->data() + number->size(), layer);
        const auto& layers = *config_->layers_to_transform;
        return std::find(layers.begin(), layers.end(), layer) != layers.end();
      }
    }
    return false;
  }

private:
  explicit LayerFilter(const AdapterConfig& config) : config_(&config) {}
  const AdapterConfig* config_;
  std::vector<ModulePattern> patterns_;
};

template <class T>
Result<T> in_field(Result<T> result, std::string_view field) {
  return result.ok() ? std::move(result) : Result<T>(result.status().with_context(field));
}

Result<std::vector<AdapterModule>> resolve(const AdapterConfig& config, const ModelConfig& model) {
  TIDEMILL_ASSIGN_OR_RETURN(const Selection targets,
                            in_field(Selection::make(config.targets), "target_modules"));
  TIDEMILL_ASSIGN_OR_RETURN(const Selection excluded,
                            in_field(Selection::make(config.excluded), "exclude_modules"));
  TIDEMILL_ASSIGN_OR_RETURN(const Selection feedforward,
                            in_field(Selection::make(config.feedforward), "feedforward_modules"));
  TIDEMILL_ASSIGN_OR_RETURN(const LayerFilter layers,
                            in_field(LayerFilter::make(config), "layers_pattern"));
  TIDEMILL_ASSIGN_OR_RETURN(
      const auto ranks,
      in_field(Overrides<std::int64_t>::make(config.rank_pattern), "rank_pattern"));
  TIDEMILL_ASSIGN_OR_RETURN(
      const auto alphas, in_field(Overrides<double>::make(config.alpha_pattern), "alpha_pattern"));

  std::vector<AdapterModule> out;
  for (ModelModule& module : model_modules(model)) {
    const std::string path = module.path;
    const bool saved =
        std::any_of(config.modules_to_save.begin(), config.modules_to_save.end(),
                    [&path](const std::string& name) { return ends_with_name(path, name); });
    TIDEMILL_ASSIGN_OR_RETURN(const bool is_excluded,
                              in_field(excluded.selects(module), "exclude_modules"));
    TIDEMILL_ASSIGN_OR_RETURN(bool selected, in_field(targets.selects(module), "target_modules"));
    if (selected && config.targets.kind == ModuleSelector::Kind::kNames &&
        !targets.names_exactly(module)) {
      TIDEMILL_ASSIGN_OR_RETURN(selected, in_field(layers.allows(path), "layers_pattern"));
    }
    if (!selected || saved || is_excluded) {
      continue;
    }
    AdapterModule entry;
    entry.module = std::move(module);
    if (config.kind == AdapterKind::kIa3) {
      TIDEMILL_ASSIGN_OR_RETURN(entry.scales_input,
                                in_field(feedforward.selects(entry.module), "feedforward_modules"));
    } else {
      TIDEMILL_ASSIGN_OR_RETURN(entry.rank,
                                in_field(ranks.value_for(path, config.rank), "rank_pattern"));
      TIDEMILL_ASSIGN_OR_RETURN(entry.alpha,
                                in_field(alphas.value_for(path, config.alpha), "alpha_pattern"));
      const auto rank = static_cast<double>(entry.rank);
      entry.scale = entry.alpha / (config.use_rslora ? std::sqrt(rank) : rank);
    }
    if (entry.module.is_embedding && (config.use_dora || config.kind == AdapterKind::kIa3)) {
      return Status(Errc::kUnimplemented,
                    "target_modules: DoRA and IA3 on embed_tokens are not supported");
    }
    out.push_back(std::move(entry));
  }
  if (out.empty()) {
    return invalid_argument("target_modules: match no module of this model");
  }
  return out;
}

}  // namespace

bool saves_module(const AdapterConfig& config, std::string_view path) {
  return std::any_of(config.modules_to_save.begin(), config.modules_to_save.end(),
                     [path](const std::string& entry) { return path.ends_with(entry); });
}

std::vector<ModelModule> model_modules(const ModelConfig& model) {
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t queries = model.num_heads * model.head_dim;
  const std::int64_t keys = model.num_kv_heads * model.head_dim;
  const std::int64_t inner = model.intermediate_size;
  std::vector<ModelModule> modules;
  modules.push_back({"model.embed_tokens", hidden, model.vocab_size, false, true});
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    modules.push_back({prefix + "self_attn.q_proj", queries, hidden, model.qkv_bias, false});
    modules.push_back({prefix + "self_attn.k_proj", keys, hidden, model.qkv_bias, false});
    modules.push_back({prefix + "self_attn.v_proj", keys, hidden, model.qkv_bias, false});
    modules.push_back({prefix + "self_attn.o_proj", hidden, queries, model.output_bias, false});
    modules.push_back({prefix + "mlp.gate_proj", inner, hidden, model.mlp_bias, false});
    modules.push_back({prefix + "mlp.up_proj", inner, hidden, model.mlp_bias, false});
    modules.push_back({prefix + "mlp.down_proj", hidden, inner, model.mlp_bias, false});
  }
  modules.push_back({"lm_head", model.vocab_size, hidden, false, false});
  return modules;
}

Result<std::vector<AdapterModule>> resolve_adapter(const AdapterConfig& config,
                                                   const ModelConfig& model,
                                                   const std::string& location) {
  return in_field(resolve(config, model), location);
}

}  // namespace tidemill::engines
