// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: their keys as a config, their tensors under Hugging Face's names.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "base/tensor_file.hpp"
#include "engines/formats/gguf.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// What is read of a model in a GGUF file.
enum class GgufPart : std::uint8_t { kConfig, kWhole };

/// A model in a GGUF file.
struct GgufModel {
  ModelConfig config;
  TensorMap tensors;  // by Hugging Face's names; empty when the config alone was asked for
};

/// Opens the GGUF file `path`, whose architecture must be llama, qwen2 or qwen3.
///
/// The config comes from the keys and the tensors that are there (without "output.weight" the
/// embedding table is the head); its dtype is bfloat16 or float16 where all matrices are, else
/// float32. A `config` from elsewhere is taken instead, and must agree with the keys in every size.
/// The frequencies of "rope_freqs.weight" become the llama3 scaling that they were made from.
/// Converters write rows of a llama's query and key weights so that what is rotated together stands
/// side by side; here they stand as in Hugging Face's files again, half a head apart: the row
/// p C/2 + i of a head of C rows is the file's row 2 i + p. Rows move whole, blocks and all.
///
/// Errors: one line naming file and key or tensor: those of `read_gguf_header`,
/// `parse_model_config`; `kUnimplemented` for keys of an architecture that would change what is
/// computed; `kInvalidArgument` for a tensor that no such model has, or two that disagree.
/// Source: ggml-org/llama.cpp, convert_hf_to_gguf.py (names, `permute`, frequencies) and
/// docs/gguf.md of ggml-org/ggml (keys).
[[nodiscard]] Result<GgufModel> open_gguf_model(const std::filesystem::path& path, GgufPart part,
                                                const std::optional<ModelConfig>& config,
                                                TensorPlacement placement);

/// Where a model's files are: a directory, and a GGUF file if its weights stand in one.
struct ModelPlace {
  std::filesystem::path directory;  // also where config.json and tokenizer.json may lie
  std::optional<std::filesystem::path> gguf;
};

/// Says where the files of the model `path` are: a GGUF file itself, or a directory; of one without
/// safetensors its only "*.gguf". A path with nothing there is a directory.
/// Errors: `kInvalidArgument` for a directory with several GGUF files and nothing else.
[[nodiscard]] Result<ModelPlace> find_model(const std::filesystem::path& path);

}  // namespace tidemill::engines
