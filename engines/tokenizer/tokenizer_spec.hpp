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
#include "engines/tokenizer/normalize.hpp"

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

/// What the tokens of a vocabulary are spelled in, which is also what the merges begin with.
enum class Alphabet : std::uint8_t {
  kBytes,       // the byte alphabet: one character per byte of the text
  kCharacters,  // the characters of the text, as in SentencePiece
};

/// One change to text before its tokens are looked up.
struct NormalizerStep {
  enum class Kind : std::uint8_t { kUnicode, kPrepend, kReplace, kStrip };
  Kind kind = Kind::kUnicode;
  NormalizationForm form = NormalizationForm::kNfc;  // kUnicode
  std::string pattern;                               // kReplace: what `content` replaces
  std::string content;                               // kPrepend, kReplace
  bool strips_begin = false;                         // kStrip: white space
  bool strips_end = false;
};

/// How text is cut into pieces. Merges do not cross the ends of a piece.
struct SplitStep {
  enum class Kind : std::uint8_t {
    kRegex,   // each match and each stretch of text between matches (Oniguruma syntax)
    kBefore,  // before each occurrence of a text
    kAfter,   // after each occurrence of a text
  };
  Kind kind = Kind::kRegex;
  std::string pattern;
};

/// How the spaces of text are written before it is split.
struct SpaceStep {
  enum class Prepend : std::uint8_t {
    kNever,
    kFirst,   // to the text that begins the whole input
    kAlways,  // to all text between added tokens
  };
  std::string replacement;  // of each space; empty: spaces stay
  std::string prefix;       // added to text that does not begin with it
  Prepend prepend = Prepend::kNever;
};

/// How tokens become text.
struct DecoderSpec {
  struct Replacement {
    std::string pattern;
    std::string content;  // not longer than the pattern
  };
  Alphabet alphabet = Alphabet::kBytes;
  // The other fields are for an alphabet of characters.
  std::vector<Replacement> replacements;  // in each token
  bool byte_fallback = false;             // <0x00> to <0xFF> are bytes
  std::string dropped_in_first;           // removed from the first token before replacements
  std::string stripped;                   // a character that is stripped from the beginning
  std::size_t max_stripped = 0;           // at most this many times
};

/// A BPE tokenizer as plain data.
struct TokenizerSpec {
  Alphabet alphabet = Alphabet::kCharacters;
  std::unordered_map<std::string, std::int32_t> vocabulary;  // spelled in the alphabet
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  // a piece that is in the vocabulary becomes that token unmerged
  // For characters without a token, in an alphabet of characters: the tokens <0x00> to <0xFF>
  // (the vocabulary has them all), or else the unknown token.
  bool byte_fallback = false;
  std::optional<std::int32_t> unknown_id;
  bool fuse_unknown = false;  // one unknown token for adjacent characters
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizers;
  SpaceStep spaces;
  std::vector<SplitStep> splits;  // applied one after the other
  DecoderSpec decoder;
  // Added before and after the tokens of a text if special tokens are requested.
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
};

/// All ids are below this value, so that tables indexed by id stay small.
inline constexpr std::int32_t kMaxTokenId = 1 << 22;
/// The largest content of an added token.
inline constexpr std::size_t kMaxAddedTokenBytes = 512;
/// The largest text that a normalizer adds at one position.
inline constexpr std::size_t kMaxInsertedBytes = 16;
/// The largest number of normalizers, and of decoders.
inline constexpr std::size_t kMaxSteps = 16;

/// Parses the content of a tokenizer.json.
///
/// Errors: `kCorruptData` (not JSON, wrong types, ids that are duplicate or out of range, merges of
/// unknown tokens), `kUnimplemented` (anything other than BPE as used by GPT-2, Llama 2, Llama 3,
/// Mistral, Gemma and Qwen). Messages begin with the field, e.g. "model.merges[3]: ...".
[[nodiscard]] Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

}  // namespace tidemill::engines
