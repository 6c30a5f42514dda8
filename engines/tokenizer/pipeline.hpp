// SPDX-License-Identifier: Apache-2.0
// The stages that turn text into token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
/// the added tokens that match normalized text are cut out. In each remaining stretch of text,
/// spaces are rewritten and one may be added. The patterns split it on its own, so a look-ahead
/// cannot see past a token that was cut out.
class Pipeline {
public:
  enum class Spans : std::uint8_t { kNo, kYes };

  /// Compiles the patterns and sorts the added tokens of `spec`.
  /// Errors: those of `Regex::compile` and `AlignedText::apply`; `kCorruptData` if an added token
  /// is empty or equal to another one after normalization.
  [[nodiscard]] static Result<Pipeline> build(const TokenizerSpec& spec);

  /// Encodes `text` without adding tokens around it. May stop once there are more than
  /// `max_tokens`. Errors: as `Tokenizer::encode`.
  [[nodiscard]] Result<Encoding> encode(std::string_view text, Spans spans,
                                        std::size_t max_tokens) const;

private:
  class Run;

  // A `SplitStep` that is ready to be applied.
  struct Split {
    SplitStep::Kind kind = SplitStep::Kind::kRegex;
    std::string text;            // kBefore, kAfter
    std::optional<Regex> regex;  // kRegex
  };

  Pipeline(const TokenizerSpec& spec, std::vector<Split> splits, AddedTokenMatcher raw_tokens,
           AddedTokenMatcher normalized_tokens)
      : normalizers_(spec.normalizers),
        spaces_(spec.spaces),
        splits_(std::move(splits)),
        bpe_(spec),
        raw_tokens_(std::move(raw_tokens)),
        normalized_tokens_(std::move(normalized_tokens)) {}

  std::vector<NormalizerStep> normalizers_;
  SpaceStep spaces_;
  std::vector<Split> splits_;
  Bpe bpe_;
  AddedTokenMatcher raw_tokens_;
  AddedTokenMatcher normalized_tokens_;
};

}  // namespace tidemill::engines
