// SPDX-License-Identifier: Apache-2.0
// Opens and writes adapter directories in PEFT's layout.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {

/// The prefix of every tensor name in an adapter file.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// An adapter as it is stored in a directory.
struct AdapterFiles {
  AdapterConfig config;
  std::vector<AdapterModule> modules;
  TensorMap tensors;  // exactly those of `expected_adapter_tensors`; each kF32, kF16 or kBF16
  std::string location = "adapter";  // named in errors about `config`: a file or a key
};

/// Returns the tensors in the file of an adapter on `model`. `modules` comes from
/// `resolve_adapter`. A name consists of the prefix, the module's path and one of these suffixes:
/// - LoRA: ".lora_A.weight" (rank, in) and ".lora_B.weight" (out, rank); with lora_bias also
///   ".lora_B.bias" (out); with DoRA also ".lora_magnitude_vector" (out). On embeddings the first
///   two are ".lora_embedding_A" (rank, vocabulary) and ".lora_embedding_B" (hidden, rank).
/// - IA3: ".ia3_l", with shape (1, in) if the input is scaled, else (out, 1).
/// - Replaced biases: ".base_layer.bias" (out) for targets, ".bias" for other modules.
/// - modules_to_save: the tensors of every module for which `saves_module` is true, under their
///   names in the model.
///
/// Source: huggingface/peft, docs/source/developer_guides/checkpoint.md.
[[nodiscard]] TensorShapes expected_adapter_tensors(const AdapterConfig& config,
                                                    const std::vector<AdapterModule>& modules,
                                                    const ModelConfig& model);

/// Makes an adapter of `model` from its configuration and tensors. Errors about the configuration
/// and the tensors start with `location`. Errors: as `resolve_adapter`; `kInvalidArgument` naming a
/// tensor that is missing, unknown or not finite, or has the wrong shape.
[[nodiscard]] Result<AdapterFiles> assemble_adapter(AdapterConfig config, TensorMap tensors,
                                                    const ModelConfig& model,
                                                    const std::string& location);

/// Opens the directory `path` with `adapter_config.json` and `adapter_model.safetensors`. The
/// tensors are read into memory.
/// Errors: one line that names the file and the tensor or field: `kNotFound`, `kCorruptData`,
/// `kInvalidArgument`, `kUnimplemented`, `kUnavailable`.
[[nodiscard]] Result<AdapterFiles> open_adapter(const std::filesystem::path& path,
                                                const ModelConfig& model);

/// Returns the names of the files that `write_adapter` writes.
[[nodiscard]] std::span<const std::string_view> exported_adapter_names();

/// Writes an adapter to the directory `path`, which is created if it does not exist. Its parent
/// must exist. The config is written first and the tensors last. If an adapter is replaced, its
/// tensors are removed first, so that an interrupted write never leaves a mixture of two adapters.
/// Errors: as `resolve_adapter` and `DurableFile`; `kInvalidArgument` if `tensors` are not those of
/// `expected_adapter_tensors`.
[[nodiscard]] Status write_adapter(FileSystem& files, const std::filesystem::path& path,
                                   const AdapterConfig& config, const ModelConfig& model,
                                   const TensorMap& tensors);

}  // namespace tidemill::engines
