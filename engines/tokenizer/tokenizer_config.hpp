// SPDX-License-Identifier: Apache-2.0
// What lies beside a tokenizer.json: the names of special tokens, and chat templates.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines {

/// Reads a whole file of at most `max_bytes`.
/// Errors: `kNotFound`, `kUnavailable` (cannot be read), `kResourceExhausted` (too large); the
/// message begins with the path.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path,
                                                 std::size_t max_bytes);

/// A token that tokenizer_config.json says must exist.
struct DeclaredToken {
  std::int32_t id = 0;
  std::string content;
};

/// The content of tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  /// Templates by name; the unnamed one is "default".
  std::map<std::string, std::string> chat_templates;
  /// `added_tokens_decoder`, as older files have it.
  std::vector<DeclaredToken> declared_tokens;
};

/// Reads what is there of the three files in the directory of `model`; all may be missing. Of a
/// model whose GGUF file has no tokenizer.json beside it, reads what the file says of the same.
///
/// tokenizer_config.json wins over special_tokens_map.json, and chat_template.jinja over a template
/// inside tokenizer_config.json. Unknown keys are ignored.
/// Errors: `kCorruptData` (not JSON, wrong types, invalid UTF-8), those of `read_text_file` and
/// `read_gguf_tokenizer`; messages name file and field.
[[nodiscard]] Result<TokenizerConfig> load_tokenizer_config(const std::filesystem::path& model);

/// The texts that a tokenizer is made from, and the files that messages name.
struct TokenizerSource {
  std::string tokenizer_json;
  std::string place;
  TokenizerConfig config;
  std::string config_place;
};

/// Reads the tokenizer of `model`, a directory or a GGUF file: tokenizer.json and what lies beside
/// it or, where there is none, what the GGUF file says of the same.
/// Errors: as `load_tokenizer_config`.
[[nodiscard]] Result<TokenizerSource> read_tokenizer_source(const std::filesystem::path& model);

}  // namespace tidemill::engines
