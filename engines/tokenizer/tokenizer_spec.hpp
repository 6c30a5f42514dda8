// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json says, once every name is resolved and everything unsupported is refused.
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

/// A token that is cut out of the text before anything else looks at it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
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
  bool ignore_merges = false;  // a piece that is in the vocabulary is that token
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer = Normalizer::kNone;
  std::vector<std::string> split_patterns;  // Oniguruma syntax; applied one after the other
  bool add_prefix_space = false;
  std::vector<std::int32_t> prefix_ids;  // put before and after the text's tokens when special
  std::vector<std::int32_t> suffix_ids;  // tokens are asked for
};

/// Ids are below this, so that tables indexed by id stay small.
inline constexpr std::int32_t kMaxTokenId = 1 << 22;
/// An added token's content is at most this long.
inline constexpr std::size_t kMaxAddedTokenBytes = 512;

/// Reads the content of a tokenizer.json.
///
/// Errors: `kCorruptData` (not JSON, wrong types, ids twice or out of range, merges of unknown
/// tokens), `kUnimplemented` (a kind of tokenizer that is not byte-level BPE as GPT-2, Llama 3 and
/// Qwen have it). Messages begin with the field, e.g. "model.merges[3]: ...".
[[nodiscard]] Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

}  // namespace tidemill::engines
