// SPDX-License-Identifier: Apache-2.0
// Descriptions of adapters: PEFT's `adapter_config.json`, and the modules of a model that it
// selects.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// The method of an adapter.
enum class AdapterKind : std::uint8_t { kLora, kIa3 };

/// Selects the biases of the base that an adapter replaces.
enum class AdapterBias : std::uint8_t { kNone, kAll, kTargets };

/// A field of the config that selects modules.
struct ModuleSelector {
  enum class Kind : std::uint8_t {
    kNames,      // paths, or their last components
    kRegex,      // one pattern that must match the whole path
    kAllLinear,  // every linear layer except lm_head
  };
  Kind kind = Kind::kNames;
  std::vector<std::string> names;  // kNames; empty: none
  std::string regex;               // kRegex
  friend bool operator==(const ModuleSelector&, const ModuleSelector&) = default;
};

/// The description of an adapter. `adapter_spec` (engines/peft) applies it to a model.
struct AdapterConfig {
  AdapterKind kind = AdapterKind::kLora;
  std::string base_model;  // name or path; may be empty
  std::int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;     // of the input, in training only
  bool use_rslora = false;  // scale alpha / sqrt(rank) instead of alpha / rank
  bool use_dora = false;
  bool lora_bias = false;  // B has its own bias
  ModuleSelector targets{ModuleSelector::Kind::kNames, {"q_proj", "v_proj"}, {}};
  ModuleSelector excluded;
  ModuleSelector feedforward;  // IA3: targets whose input is scaled instead of their output
  /// Overrides of rank and alpha by pattern. A key applies to the paths that `(.*\.)?(key)$`
  /// matches. The first key that applies, in this order, is used.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::optional<std::vector<std::int64_t>> layers_to_transform;  // with target names only
  std::vector<std::string> layers_pattern;  // the name before the layer number; empty: any name
  AdapterBias bias = AdapterBias::kNone;
  std::vector<std::string> modules_to_save;  // modules replaced as a whole; see `saves_module`
  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

/// Parses the text of an `adapter_config.json`. Unknown fields are ignored. Known fields that
/// change the computation but have no counterpart in `AdapterConfig` are refused.
/// Errors: `kUnimplemented` for such a field; `kInvalidArgument`; `kCorruptData`. Each is one line
/// that names `location` and the field.
/// Source: huggingface/peft, src/peft/tuners/lora/config.py, ia3/config.py (version 0.21).
[[nodiscard]] Result<AdapterConfig> parse_adapter_config(std::string_view text,
                                                         const std::string& location);
/// Reads and parses the file `path`. Errors: as `parse_adapter_config` and `read_text_file`.
[[nodiscard]] Result<AdapterConfig> read_adapter_config(const std::filesystem::path& path);

/// Returns `config` as the text of an `adapter_config.json`. Parsing it gives an equal config.
[[nodiscard]] std::string adapter_config_text(const AdapterConfig& config);

/// A module of a model that an adapter can change.
struct ModelModule {
  std::string path;  // e.g. "model.layers.0.self_attn.q_proj"
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;  // for embed_tokens: the size of the vocabulary
  bool has_bias = false;
  bool is_embedding = false;
};

/// Returns embed_tokens, the seven projections of every layer, and lm_head (tied or not).
[[nodiscard]] std::vector<ModelModule> model_modules(const ModelConfig& model);

/// A module that an adapter changes, and how it changes it.
struct AdapterModule {
  ModelModule module;
  std::int64_t rank = 0;      // LoRA
  double alpha = 0.0;         // LoRA
  double scale = 0.0;         // LoRA: y += scale * B(A(x))
  bool scales_input = false;  // IA3
};

/// Returns whether the adapter saves the module at `path` as a whole. It does if the path ends with
/// the text of an entry of modules_to_save, even within a component.
/// Source: huggingface/peft, src/peft/utils/other.py, _set_trainable.
[[nodiscard]] bool saves_module(const AdapterConfig& config, std::string_view path);

/// Returns the modules of `model` that `config` selects, in the order of `model_modules`.
///
/// The rules are those of PEFT. A name matches a whole path or its last components. Modules that
/// are excluded or that an entry of modules_to_save matches in this way are not selected. An entry
/// that matches only a part of a component does not prevent the selection, but the module is then
/// also saved; `adapter_spec` refuses that. `layers_to_transform` restricts only names that are not
/// whole paths.
/// Errors: one line that begins with `location`. `kInvalidArgument` for a bad pattern, a pattern
/// that takes too many steps, or an empty selection; `kUnimplemented` for DoRA or IA3 on
/// embeddings.
/// Source: huggingface/peft, src/peft/tuners/tuners_utils.py, check_target_module_exists.
[[nodiscard]] Result<std::vector<AdapterModule>> resolve_adapter(const AdapterConfig& config,
                                                                 const ModelConfig& model,
                                                                 const std::string& location);

}  // namespace tidemill::engines
