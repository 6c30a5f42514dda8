// SPDX-License-Identifier: Apache-2.0
// The description of a model: Hugging Face's `config.json` and `generation_config.json` as checked
// values.
//
// Other code relies on these checks: sizes are positive and small enough that products of two or
// three of them fit in 63 bits, num_kv_heads divides num_heads, and per-layer lists have one entry
// per layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "base/tensor/dtype.hpp"

namespace tidemill::engines {

enum class ModelFamily : std::uint8_t { kLlama, kQwen2, kQwen3 };

/// How rotation frequencies are derived from theta. `rope_frequencies` documents the formulas.
enum class RopeKind : std::uint8_t { kDefault, kLinear, kLlama3, kYarn };

/// Rotary position embedding. Fields that its kind does not use keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                      // linear, llama3, yarn
  std::int64_t original_max_positions = 0;  // llama3, yarn: context before scaling
  double low_freq_factor = 1.0;             // llama3
  double high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0;                  // yarn
  double beta_slow = 1.0;                   // yarn
  std::optional<double> attention_factor;   // yarn; absent: computed from factor and mscale
  std::optional<double> mscale;             // yarn
  std::optional<double> mscale_all_dim;     // yarn
  bool truncate = true;                     // yarn: round the ends of the ramp outward
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

/// The architecture of a decoder-only transformer of the Llama kind.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even; need not be hidden_size / num_heads
  std::int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;  // the output projection is the embedding table
  bool qkv_bias = false;
  bool output_bias = false;  // of o_proj
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm per head of queries and keys, before the rotation
  RopeConfig rope;
  std::vector<std::int64_t>
      sliding_windows;  // per layer: number of keys a query sees, including its own; 0: all
  std::vector<std::int32_t> eos_token_ids;  // may be empty
  std::optional<std::int32_t> bos_token_id;
  std::optional<std::int32_t> pad_token_id;
  DType dtype = DType::kF32;  // declared type of the stored weights: kF32, kF16 or kBF16
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// The settings in `generation_config.json`. A setting that the file does not contain is absent.
struct GenerationConfig {
  std::vector<std::int32_t> eos_token_ids;  // empty: those of the model config
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<std::int64_t> max_new_tokens;
  friend bool operator==(const GenerationConfig&, const GenerationConfig&) = default;
};

/// Returns the value of `model_type`: "llama", "qwen2" or "qwen3".
[[nodiscard]] std::string_view family_name(ModelFamily family) noexcept;

/// Parses the text of a `config.json`, in the style of Transformers 4 (`rope_theta`,
/// `rope_scaling`, `torch_dtype`) or 5 (`rope_parameters`, `dtype`). `location` names the file in
/// messages.
/// Errors: `kUnimplemented` for unsupported features, `kInvalidArgument` or `kCorruptData` for
/// everything else, each in one line that names the file and the field.
[[nodiscard]] Result<ModelConfig> parse_model_config(std::string_view text,
                                                     const std::string& location);
/// Reads and parses the file `path`. Errors: as `parse_model_config` and `read_text_file`.
[[nodiscard]] Result<ModelConfig> read_model_config(const std::filesystem::path& path);

/// Parses the text of a `generation_config.json`. Errors: as `parse_model_config`.
[[nodiscard]] Result<GenerationConfig> parse_generation_config(std::string_view text,
                                                               const std::string& location);
/// Reads and parses the file `path`. Errors: as `parse_generation_config` and `read_text_file`.
[[nodiscard]] Result<GenerationConfig> read_generation_config(const std::filesystem::path& path);

/// Returns `config` as the text of a `config.json` with the keys of Transformers 4, which
/// Transformers 5 reads too. Parsing the text gives an equal config.
[[nodiscard]] std::string model_config_text(const ModelConfig& config);
/// Writes `config` durably to the file `path`. Errors: as `DurableFile`.
[[nodiscard]] Status write_model_config(FileSystem& files, const std::filesystem::path& path,
                                        const ModelConfig& config);

}  // namespace tidemill::engines
