// SPDX-License-Identifier: Apache-2.0
// Opens models in the Hugging Face layout or in GGUF files, creates random weights, and exports
// models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/tensor_file.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// Maps tensor names to shapes.
using TensorShapes = std::map<std::string, std::vector<std::int64_t>>;

/// Returns the tensors of a model with this config. Linear weights have shape (out, in).
/// A model with tied embeddings has no "lm_head.weight".
[[nodiscard]] TensorShapes expected_tensors(const ModelConfig& config);

/// Returns the number of elements of all `expected_tensors`. It fits in 63 bits for every checked
/// config.
[[nodiscard]] std::int64_t num_parameters(const ModelConfig& config);

/// A model as it is stored in a directory or a GGUF file.
struct ModelFiles {
  ModelConfig config;
  GenerationConfig generation;  // all settings absent without a generation_config.json
  TensorMap tensors;            // exactly those of `expected_tensors`, each of `is_weight_type`
  /// If the weights have not been checked for NaN and infinity, the file to name in an error;
  /// otherwise empty.
  std::string unchecked = {};
};

/// When weights are checked for NaN and infinity. `open_runtime` can check them while it lays them
/// out, which saves one pass over the file.
enum class FiniteCheck : std::uint8_t { kOnOpen, kInRuntime };

/// Opens the model `path`. It is either a directory with `config.json` and `model.safetensors` (or
/// the shards that `model.safetensors.index.json` lists), or a GGUF file (see `open_gguf_model`). A
/// GGUF file is given by its own path or by that of a directory that contains it and no
/// safetensors. A `config.json` next to a GGUF file takes precedence over the file's keys.
///
/// Tensors are mapped unless `placement` says otherwise. With `FiniteCheck::kOnOpen`, no weight of
/// the result is NaN or infinite. With `kInRuntime`, the caller must pass the model to
/// `open_runtime`, which checks the weights, before anything else reads them.
///
/// Two kinds of extra tensors are ignored because published files contain them: "lm_head.weight" in
/// a tied model if it has the shape of the embedding table, and the constant buffers
/// "*.rotary_emb.inv_freq".
/// Errors: one line that names the file and the tensor or field: `kNotFound`, `kCorruptData`,
/// `kInvalidArgument`, `kUnimplemented`, `kUnavailable`.
[[nodiscard]] Result<ModelFiles> open_model(const std::filesystem::path& path,
                                            TensorPlacement placement = TensorPlacement::kMapped,
                                            FiniteCheck check = FiniteCheck::kOnOpen);

/// Opens the model `path` without its weights: `tensors` stays empty. Errors: as `open_model`.
[[nodiscard]] Result<ModelFiles> open_model_config(const std::filesystem::path& path);

/// Checks that `tensors` are exactly the `expected` ones, each of `is_weight_type`.
/// Errors: `kInvalidArgument` in one line that begins with `location` and names the tensor.
[[nodiscard]] Status check_tensors(const TensorShapes& expected, const TensorMap& tensors,
                                   const std::string& location);

/// Checks that no element of `tensors` is NaN or infinite.
/// Errors: `kInvalidArgument`; the message begins with `location` and names the tensor and the
/// element.
[[nodiscard]] Status check_finite_weights(const TensorMap& tensors, const std::string& location);

/// Creates weights for training from scratch, in `config.dtype`. Matrices are sampled from a normal
/// distribution with standard deviation 0.02, norm gains are 1 and biases 0. Every tensor has its
/// own random stream, numbered by its position in name order, so the same seed gives the same bits.
/// Source: `_init_weights` in huggingface/transformers, modeling_utils.py, with its default range.
[[nodiscard]] TensorMap random_model_tensors(const ModelConfig& config, std::uint64_t seed);

/// Returns the names of the files that `export_model` writes.
[[nodiscard]] std::span<const std::string_view> exported_model_names();

/// Writes a model to the directory `path`, which is created if it does not exist. Its parent must
/// exist.
///
/// `config.json` is copied from the directory of `source` if it describes an equal config there,
/// because it may contain fields that this project does not read. Otherwise it is written anew. The
/// files of the tokenizer, chat template and generation config are copied from `source`. If
/// `source` is a GGUF file without a tokenizer.json, its tokenizer is converted. Blocks become
/// float32 without rounding, because the safetensors layout has no blocks.
///
/// The weights are written last. If a model is replaced, its weights are removed first, so an
/// interrupted export may leave a directory without weights but never a mixture of two models. The
/// next export removes the temporary files of an interrupted one.
/// Errors: as `check_tensors`, `DurableFile` and `ReadableFile`; `kInvalidArgument` if `path` is
/// the directory of `source`.
[[nodiscard]] Status export_model(FileSystem& files, const std::filesystem::path& path,
                                  const ModelConfig& config, const TensorMap& tensors,
                                  const std::optional<std::filesystem::path>& source);

}  // namespace tidemill::engines
