// SPDX-License-Identifier: Apache-2.0
// The tokenizer in a GGUF file, as the files that a Hugging Face directory would have.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// Texts of files.
struct TokenizerTexts {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

/// Returns what `keys` of a GGUF file say of the tokenizer. Supported is byte-level BPE
/// ("tokenizer.ggml.model" gpt2) with the splits ("tokenizer.ggml.pre") llama-bpe, qwen2 and gpt-2,
/// written as the models of these names have it: qwen2 normalizes to NFC, llama-bpe puts the token
/// of "bos_token_id" before a text unless "add_bos_token" is false. Control tokens are special,
/// unused ones are none.
/// Errors: `kNotFound` without a tokenizer; `kUnimplemented` for others, by name; `kCorruptData`
/// naming key and token. Messages do not name the file.
/// Source: ggml-org/ggml, docs/gguf.md; ggml-org/llama.cpp, src/llama-vocab.cpp (names of splits
/// and their defaults) and convert_hf_to_gguf.py (types of tokens).
[[nodiscard]] Result<TokenizerTexts> gguf_tokenizer(const Json& keys);

/// Reads the tokenizer of the GGUF file `path`. Errors: as `read_gguf_header` and `gguf_tokenizer`,
/// naming the file.
[[nodiscard]] Result<TokenizerTexts> read_gguf_tokenizer(const std::filesystem::path& path);

}  // namespace tidemill::engines
