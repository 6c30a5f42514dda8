// SPDX-License-Identifier: Apache-2.0
// The content of a tokenizer.json after all names are resolved. Unsupported features are refused.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines {

/// A token that is cut out of the text before the patterns split it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only if no word character is adjacent to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = false;   // matches in the normalized text instead of the raw text
  bool special = false;      // dropped when decoding without special tokens
};

/// One rule of byte-pair encoding; its rank is its index.
struct MergeRule {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t merged = 0;
};

/// A byte-level BPE tokenizer as plain data.
struct TokenizerSpec {
  enum class Normalizer : std::uint8_t { kNone, kNfc };

  std::unordered_map<std::string, std::int32_t> vocabulary;  // spelled in the byte alphabet
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  // a piece that is in the vocabulary becomes that token unmerged
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer = Normalizer::kNone;
  std::vector<std::string> split_patterns;  // Oniguruma syntax; applied one after the other
  bool add_prefix_space = false;
  // Added before and after the tokens of a text if special tokens are requested.
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
};

/// All ids are below this value, so that tables indexed by id stay small.
inline constexpr std::int32_t kMaxTokenId = 1 << 22;
/// The largest content of an added token.
inline constexpr std::size_t kMaxAddedTokenBytes = 512;

/// Parses the content of a tokenizer.json.
///
/// Errors: `kCorruptData` (not JSON, wrong types, ids that are duplicate or out of range, merges of
/// unknown tokens), `kUnimplemented` (anything other than byte-level BPE as used by GPT-2, Llama 3
/// and Qwen). Messages begin with the field, e.g. "model.merges[3]: ...".
[[nodiscard]] Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

}  // namespace tidemill::engines
