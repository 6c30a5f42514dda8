// SPDX-License-Identifier: Apache-2.0
// Adapter directories in PEFT's layout: opening and writing.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {

/// What every tensor name of an adapter file begins with.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// An adapter as a directory holds it.
struct AdapterFiles {
  AdapterConfig config;
  std::vector<AdapterModule> modules;
  TensorMap tensors;  // exactly those of `expected_adapter_tensors`; each kF32, kF16 or kBF16
  std::string place = "adapter";  // what an error about `config` names: a file, or a key
};

/// Returns the tensors that the file of an adapter on `model` holds, with `modules` from
/// `resolve_adapter`. After the prefix and the module's path follow:
/// - LoRA: ".lora_A.weight" (rank, in) and ".lora_B.weight" (out, rank), with lora_bias
///   ".lora_B.bias" (out), with DoRA ".lora_magnitude_vector" (out); on embeddings
///   ".lora_embedding_A" (rank, vocabulary) and ".lora_embedding_B" (hidden, rank).
/// - IA3: ".ia3_l", (1, in) where the input is scaled, else (out, 1).
/// - Biases that are replaced: ".base_layer.bias" (out) of targets, ".bias" of others.
/// - modules_to_save: the tensors of every part of the model whose path ends so.
/// Source: huggingface/peft, docs/source/developer_guides/checkpoint.md.
[[nodiscard]] TensorShapes expected_adapter_tensors(const AdapterConfig& config,
                                                    const std::vector<AdapterModule>& modules,
                                                    const ModelConfig& model);

/// Opens the directory `path`: `adapter_config.json` and `adapter_model.safetensors`, which is read
/// into memory.
/// Errors: one line naming file and tensor or field: `kNotFound`, `kCorruptData`,
/// `kInvalidArgument`, `kUnimplemented`, `kUnavailable`.
[[nodiscard]] Result<AdapterFiles> open_adapter(const std::filesystem::path& path,
                                                const ModelConfig& model);

/// Returns the names of the files that `write_adapter` writes.
[[nodiscard]] std::span<const std::string_view> exported_adapter_names();

/// Writes an adapter as the directory `path`, which is created unless it exists (its parent must):
/// the config first, the tensors last. When an adapter is replaced its tensors go first, so that a
/// write that was cut off is never a mixture.
/// Errors: as `resolve_adapter` and `DurableFile`; `kInvalidArgument` unless `tensors` are those of
/// `expected_adapter_tensors`.
[[nodiscard]] Status write_adapter(FileSystem& files, const std::filesystem::path& path,
                                   const AdapterConfig& config, const ModelConfig& model,
                                   const TensorMap& tensors);

}  // namespace tidemill::engines
