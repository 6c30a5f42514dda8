// SPDX-License-Identifier: Apache-2.0
// The files next to a tokenizer.json: the names of special tokens, and chat templates.
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
/// Errors: `kNotFound`, `kInvalidArgument` (not a regular file, or too large), `kUnavailable`
/// (cannot be read); the message begins with the path.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path,
                                                 std::size_t max_bytes);

/// A token that tokenizer.json must contain according to tokenizer_config.json.
struct DeclaredToken {
  std::int32_t id = 0;
  std::string content;
};

/// The content of tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  /// Templates by name; a template without a name is called "default".
  std::map<std::string, std::string> chat_templates;
  /// The entries of `added_tokens_decoder`, a field of older files.
  std::vector<DeclaredToken> declared_tokens;
};

/// Reads the three files in the directory of `model`. Each of them may be missing. If the model is
/// in a GGUF file without a tokenizer.json next to it, reads the configuration from the GGUF file.
///
/// tokenizer_config.json takes precedence over special_tokens_map.json, and chat_template.jinja
/// over a template inside tokenizer_config.json. Unknown keys are ignored.
/// Errors: `kCorruptData` (not JSON, wrong types, invalid UTF-8), those of `read_text_file` and
/// `read_gguf_tokenizer`; messages name the file and the field.
[[nodiscard]] Result<TokenizerConfig> load_tokenizer_config(const std::filesystem::path& model);

/// The texts that a tokenizer is created from, and the files to name in error messages.
struct TokenizerSource {
  std::string tokenizer_json;
  std::string location;
  TokenizerConfig config;
  std::string config_location;
};

/// Reads the tokenizer of `model`, which is a directory or a GGUF file. Reads tokenizer.json and
/// the files next to it if it exists, and otherwise the tokenizer in the GGUF file.
/// Errors: as `load_tokenizer_config`.
[[nodiscard]] Result<TokenizerSource> read_tokenizer_source(const std::filesystem::path& model);

}  // namespace tidemill::engines
