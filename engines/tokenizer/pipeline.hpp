// SPDX-License-Identifier: Apache-2.0
// The stages that turn text into token ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/tokenizer/added_tokens.hpp"
#include "engines/tokenizer/bpe.hpp"
#include "engines/tokenizer/encoding.hpp"
#include "engines/tokenizer/regex.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {

/// Added tokens, normalization, splitting and byte-pair encoding of one tokenizer. Immutable.
///
/// Added tokens that match raw text are cut out first. The text between them is normalized. Then
/// the added tokens that match normalized text are cut out. The patterns split each remaining
/// stretch of text on its own, so a look-ahead cannot see past a token that was cut out.
class Pipeline {
public:
  enum class Spans : std::uint8_t { kNo, kYes };

  /// Compiles the patterns and sorts the added tokens of `spec`.
  /// Errors: those of `Regex::compile` and `normalize_nfc`; `kCorruptData` if two added tokens are
  /// equal after normalization.
  [[nodiscard]] static Result<Pipeline> build(const TokenizerSpec& spec);

  /// Encodes `text` without adding tokens around it. Errors: as `Tokenizer::encode`.
  [[nodiscard]] Result<Encoding> encode(std::string_view text, Spans spans) const;

private:
  class Run;

  Pipeline(const TokenizerSpec& spec, std::vector<Regex> splits, AddedTokenMatcher raw_tokens,
           AddedTokenMatcher normalized_tokens)
      : normalizer_(spec.normalizer),
        add_prefix_space_(spec.add_prefix_space),
        splits_(std::move(splits)),
        bpe_(spec),
        raw_tokens_(std::move(raw_tokens)),
        normalized_tokens_(std::move(normalized_tokens)) {}

  TokenizerSpec::Normalizer normalizer_;
  bool add_prefix_space_;
  std::vector<Regex> splits_;
  Bpe bpe_;
  AddedTokenMatcher raw_tokens_;
  AddedTokenMatcher normalized_tokens_;
};

}  // namespace tidemill::engines
