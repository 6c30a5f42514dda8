// SPDX-License-Identifier: Apache-2.0
// Models in the Hugging Face layout or in GGUF files: opening, making from random weights,
// exporting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"
#include "base/tensor_file.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// Shapes by tensor name.
using TensorShapes = std::map<std::string, std::vector<std::int64_t>>;

/// Returns the tensors that a model of this kind consists of. Linear weights are (out, in).
/// A model with tied embeddings has no "lm_head.weight".
[[nodiscard]] TensorShapes expected_tensors(const ModelConfig& config);

/// Returns the number of elements of all `expected_tensors`; fits 63 bits for every checked config.
[[nodiscard]] std::int64_t num_parameters(const ModelConfig& config);

/// A model as a directory or a GGUF file holds it.
struct ModelFiles {
  ModelConfig config;
  GenerationConfig generation;  // all absent when there is no generation_config.json
  TensorMap tensors;            // exactly those of `expected_tensors`, each of `is_weight_type`
  /// The file to name when a weight is NaN or infinite, while nobody has looked; else empty.
  std::string unchecked = {};
};

/// Who looks for weights that are NaN or infinite. `open_runtime` does so while it lays them out,
/// which spares one pass over the file.
enum class FiniteCheck : std::uint8_t { kAtOpening, kInRuntime };

/// Opens the directory `path`: `config.json`, and `model.safetensors` or the shards that
/// `model.safetensors.index.json` names; or a GGUF file (see `open_gguf_model`), by its own path or
/// that of a directory which holds one and no safetensors. A `config.json` beside a GGUF file is
/// taken rather than the file's keys. Tensors are mapped unless `placement` says otherwise.
/// No weight is NaN or infinite, unless `check` leaves that to `open_runtime`: only for who passes
/// the model there before anything else reads its weights.
///
/// Tolerated because published files hold them: "lm_head.weight" in a tied model if it has the
/// table's shape, and the constant buffers "*.rotary_emb.inv_freq"; both are left out.
/// Errors: one line naming file and tensor or field: `kNotFound`, `kCorruptData`,
/// `kInvalidArgument`, `kUnimplemented`, `kUnavailable`.
[[nodiscard]] Result<ModelFiles> open_model(const std::filesystem::path& path,
                                            TensorPlacement placement = TensorPlacement::kMapped,
                                            FiniteCheck check = FiniteCheck::kAtOpening);

/// Opens what of `path` is no weights: `tensors` stays empty. Errors: as `open_model`.
[[nodiscard]] Result<ModelFiles> open_model_config(const std::filesystem::path& path);

/// Checks that `tensors` are those `expected`, each of `is_weight_type`.
/// Errors: `kInvalidArgument` in one line beginning with `place` and naming the tensor.
[[nodiscard]] Status check_tensors(const TensorShapes& expected, const TensorMap& tensors,
                                   const std::string& place);

/// Checks that no element of `tensors` is NaN or infinite.
/// Errors: `kInvalidArgument` beginning with `place` and naming the tensor and the element.
[[nodiscard]] Status check_finite_weights(const TensorMap& tensors, const std::string& place);

/// Makes weights for training from scratch, in `config.dtype`: matrices from a normal distribution
/// of standard deviation 0.02, gains 1, biases 0. Every tensor draws from a stream of its own,
/// numbered by its place in name order, so that the same seed gives the same bits.
/// Source: `_init_weights` in huggingface/transformers, modeling_utils.py, with its default range.
[[nodiscard]] TensorMap random_model_tensors(const ModelConfig& config, std::uint64_t seed);

/// Returns the names of the files that `export_model` writes.
[[nodiscard]] std::span<const std::string_view> exported_model_names();

/// Writes a model as the directory `path`, which is created unless it exists (its parent must).
///
/// `config.json` is the text of the directory `source`, if that stands for an equal config (it may
/// say more than this project reads), else written anew. The tokenizer, chat template and
/// generation files that `source` has are copied; of a GGUF file without them the tokenizer is
/// written. Blocks become float32, exactly: the layout has none. Weights come last and go first
/// when a model is replaced: an export that was cut off is a directory without weights, never a
/// mixture; what it left half written goes with the next one. Requires tensors as `check_tensors`
/// wants them. Errors: as `DurableFile` and `ReadableFile`.
[[nodiscard]] Status export_model(FileSystem& files, const std::filesystem::path& path,
                                  const ModelConfig& config, const TensorMap& tensors,
                                  const std::optional<std::filesystem::path>& source);

}  // namespace tidemill::engines
