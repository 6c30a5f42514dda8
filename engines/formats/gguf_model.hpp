// SPDX-License-Identifier: Apache-2.0
// Opens models in GGUF files. The keys become a config, the tensors get Hugging Face's names.
#pragma once

#include <filesystem>
#include <optional>

#include "base/files/tensor_file.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/gguf.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// Which part of a model in a GGUF file is read.
enum class GgufPart : std::uint8_t { kConfig, kWhole };

/// A model in a GGUF file.
struct GgufModel {
  ModelConfig config;
  TensorMap tensors;  // by Hugging Face's names; empty for GgufPart::kConfig
};

/// Opens the GGUF file `path`, whose architecture must be llama, qwen2 or qwen3.
///
/// The config is derived from the keys and from the tensors that the file contains: without
/// "output.weight", for example, the embedding table is the output head. Its dtype is bfloat16 or
/// float16 if all matrices have that type, else float32. If `config` is given, it is used instead,
/// except for the dtype, and its sizes must agree with the keys. The factors in "rope_freqs.weight"
/// become the llama3 scaling that they were computed from.
///
/// For llama models, converters store the rows of query and key weights that are rotated together
/// next to each other. This function restores the order of Hugging Face's files, in which they are
/// half a head apart: row p C/2 + i of a head with C rows is row 2 i + p of the file. Rows are
/// moved as a whole, with their blocks.
///
/// Errors: one line that names the file and the key or tensor: those of `read_gguf_header` and
/// `parse_model_config`; `kUnimplemented` for unknown keys of the architecture, which could change
/// the computation; `kInvalidArgument` for a tensor that the model does not have, or if `config` or
/// a tensor disagrees with the keys.
/// Source: ggml-org/llama.cpp, convert_hf_to_gguf.py (names, `permute`, frequencies) and
/// docs/gguf.md of ggml-org/ggml (keys).
[[nodiscard]] Result<GgufModel> open_gguf_model(const std::filesystem::path& path, GgufPart part,
                                                const std::optional<ModelConfig>& config,
                                                TensorPlacement placement);

/// The location of a model's files: a directory, and a GGUF file if the weights are in one.
struct ModelLocation {
  std::filesystem::path directory;  // may also contain config.json and tokenizer.json
  std::optional<std::filesystem::path> gguf;
};

/// Finds the files of the model `path`, which is a GGUF file or a directory. In a directory without
/// safetensors, the only "*.gguf" file is used. A path that does not exist counts as a directory.
/// Errors: `kInvalidArgument` for a directory with several GGUF files and no safetensors.
[[nodiscard]] Result<ModelLocation> find_model(const std::filesystem::path& path);

}  // namespace tidemill::engines
