// SPDX-License-Identifier: Apache-2.0
// Converts the tokenizer in a GGUF file to the files of a Hugging Face directory.
#pragma once

#include <filesystem>
#include <string>

#include "base/json/json.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// The contents of the files that describe a tokenizer.
struct TokenizerTexts {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

/// Returns the tokenizer that the `keys` of a GGUF file describe. Only byte-level BPE
/// ("tokenizer.ggml.model" gpt2) with the splits ("tokenizer.ggml.pre") llama-bpe, qwen2 and gpt-2
/// is supported. The result follows the tokenizer.json of the models with these names: qwen2
/// normalizes to NFC, and llama-bpe puts the token of "bos_token_id" before a text unless
/// "add_bos_token" is false. Control tokens become special tokens. Unused tokens are omitted.
/// Errors: `kNotFound` if the keys describe no tokenizer; `kUnimplemented` for another kind of
/// tokenizer (names it); `kCorruptData` (names the key and the token). Messages do not name the
/// file.
/// Source: ggml-org/ggml, docs/gguf.md; ggml-org/llama.cpp, src/llama-vocab.cpp (names of splits
/// and their defaults) and convert_hf_to_gguf.py (types of tokens).
[[nodiscard]] Result<TokenizerTexts> gguf_tokenizer(const Json& keys);

/// Reads the tokenizer of the GGUF file `path`. Errors: as `read_gguf_header` and `gguf_tokenizer`;
/// messages name the file.
[[nodiscard]] Result<TokenizerTexts> read_gguf_tokenizer(const std::filesystem::path& path);

}  // namespace tidemill::engines
