// SPDX-License-Identifier: Apache-2.0
// What an adapter is: PEFT's `adapter_config.json`, and which modules of a model it changes.
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

enum class AdapterKind : std::uint8_t { kLora, kIa3 };

/// Which biases of the base an adapter replaces.
enum class AdapterBias : std::uint8_t { kNone, kAll, kTargets };

/// Modules chosen by a field of the config.
struct ModuleSelector {
  enum class Kind : std::uint8_t {
    kNames,      // paths, or their last components
    kRegex,      // one pattern that matches whole paths
    kAllLinear,  // every linear layer but lm_head
  };
  Kind kind = Kind::kNames;
  std::vector<std::string> names;  // kNames; empty: none
  std::string regex;               // kRegex
  friend bool operator==(const ModuleSelector&, const ModuleSelector&) = default;
};

/// An adapter's description; `adapter_spec` (engines/peft) says what it comes to on a model.
struct AdapterConfig {
  AdapterKind kind = AdapterKind::kLora;
  std::string base_model;  // name or path; may be empty
  std::int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;     // of the input, in training only
  bool use_rslora = false;  // scale alpha / sqrt(rank) in place of alpha / rank
  bool use_dora = false;
  bool lora_bias = false;  // B has a bias of its own
  ModuleSelector targets{ModuleSelector::Kind::kNames, {"q_proj", "v_proj"}, {}};
  ModuleSelector excluded;
  ModuleSelector feedforward;  // IA3: targets whose input is scaled in place of their output
  /// Overrides by pattern, matched as `(.*\.)?(key)$` on the path; the first hit in this order
  /// wins.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::optional<std::vector<std::int64_t>> layers_to_transform;  // with target names only
  std::vector<std::string> layers_pattern;  // what stands before the layer number; empty: any name
  AdapterBias bias = AdapterBias::kNone;
  std::vector<std::string> modules_to_save;  // replaced whole: paths that end so
  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

/// Parses the text of an `adapter_config.json`; unknown fields are ignored, known ones that change
/// the computation and are not represented above are refused.
/// Errors: `kUnimplemented` for these; `kInvalidArgument`, `kCorruptData`; all in one line naming
/// `place` and field.
/// Source: huggingface/peft, src/peft/tuners/lora/config.py, ia3/config.py (version 0.21).
[[nodiscard]] Result<AdapterConfig> parse_adapter_config(std::string_view text,
                                                         const std::string& place);
/// Reads and parses the file `path`. Errors: as `parse_adapter_config` and `read_text_file`.
[[nodiscard]] Result<AdapterConfig> read_adapter_config(const std::filesystem::path& path);

/// Returns `config` as the text of an `adapter_config.json`. Parsing it gives an equal config.
[[nodiscard]] std::string adapter_config_text(const AdapterConfig& config);

/// A module of a model that an adapter can change.
struct ModelModule {
  std::string path;  // e.g. "model.layers.0.self_attn.q_proj"
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;  // of embed_tokens: the vocabulary
  bool has_bias = false;
  bool is_embedding = false;
};

/// Returns embed_tokens, the seven projections of every layer, and lm_head (tied or not).
[[nodiscard]] std::vector<ModelModule> model_modules(const ModelConfig& model);

/// One module that an adapter changes, and how.
struct AdapterModule {
  ModelModule module;
  std::int64_t rank = 0;      // LoRA
  double alpha = 0.0;         // LoRA
  double scale = 0.0;         // LoRA: y += scale * B(A(x))
  bool scales_input = false;  // IA3
};

/// Returns the modules of `model` that `config` selects, in the order of `model_modules`.
///
/// As in PEFT: names match a path or its last components; excluded modules and those of
/// modules_to_save are left out; `layers_to_transform` holds for names that are not whole paths.
/// Errors, in one line beginning with `place`: `kInvalidArgument` for a bad pattern, one that takes
/// too many steps, or when nothing is selected; `kUnimplemented` for DoRA on embeddings.
/// Source: huggingface/peft, src/peft/tuners/tuners_utils.py, check_target_module_exists.
[[nodiscard]] Result<std::vector<AdapterModule>> resolve_adapter(const AdapterConfig& config,
                                                                 const ModelConfig& model,
                                                                 const std::string& place);

}  // namespace tidemill::engines
