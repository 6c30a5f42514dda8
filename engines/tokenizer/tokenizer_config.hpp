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

/// Reads what is there of the three files in `directory`; all may be missing.
///
/// tokenizer_config.json wins over special_tokens_map.json, and chat_template.jinja over a template
/// inside tokenizer_config.json. Unknown keys are ignored.
/// Errors: `kCorruptData` (not JSON, wrong types, invalid UTF-8) and those of `read_text_file`;
/// messages name file and field.
[[nodiscard]] Result<TokenizerConfig> load_tokenizer_config(const std::filesystem::path& directory);

}  // namespace tidemill::engines
