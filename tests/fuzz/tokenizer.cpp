// SPDX-License-Identifier: Apache-2.0
// Fuzzes tokenizer.json. The input is the file and, after NUL bytes, a text to encode and the name
// of the begin token.
#include "engines/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

using engines::AddSpecialTokens;
using engines::SpecialTokenText;
using engines::Tokenizer;
using engines::TokenizerSpec;

// Returns whether decoding must give back the encoded text, because the tokenizer is byte-level and
// does not normalize text, add a space or strip white space.
bool is_faithful(const TokenizerSpec& spec) {
  return spec.alphabet == engines::Alphabet::kBytes && spec.normalizers.empty() &&
         spec.spaces.prepend == engines::SpaceStep::Prepend::kNever && spec.added_tokens.empty();
}

void try_text(const Tokenizer& tokenizer, bool faithful, std::string_view text) {
  const auto encoding = tokenizer.encode_with_spans(text, AddSpecialTokens::kNo);
  const auto ids = tokenizer.encode(text, AddSpecialTokens::kNo);
  require(ids.status().message() == encoding.status().message(), "spans do not change a refusal");
  if (!ids.ok()) {
    require_refusal(ids.status(), "");
    return;
  }
  require(ids.value() == encoding.value().ids, "spans do not change the ids");
  require(encoding.value().spans.size() == ids.value().size(), "each id has a span");
  for (const engines::TextSpan& span : encoding.value().spans) {
    require(span.begin <= span.end && span.end <= text.size(), "spans are inside the text");
  }
  for (const std::int32_t id : ids.value()) {
    require(tokenizer.contains(id), "encoding gives ids of tokens");
  }
  const std::string decoded = tokenizer.decode(ids.value(), SpecialTokenText::kKeep);
  require(!find_invalid_utf8(decoded), "decoding gives UTF-8");
  require(!faithful || decoded == text, "decoding gives back the text");
  const auto around = tokenizer.encode(text, AddSpecialTokens::kYes);
  require_ok(around.status(), "adding tokens around a text does not make it fail");
  for (const std::int32_t id : around.value()) {
    require(tokenizer.contains(id), "tokens around a text exist");
  }
  static_cast<void>(tokenizer.decode(around.value(), SpecialTokenText::kDrop));
}

}  // namespace

void tokenizer(std::string_view input) {
  constexpr std::size_t kSliceBytes = 64;
  const auto parts = parts_of(input, 3);
  const auto spec = engines::parse_tokenizer_json(parts[0]);
  if (!spec.ok()) {
    require_refusal(spec.status(), "");
    return;
  }
  engines::TokenizerConfig config;
  if (!parts[2].empty()) {
    config.bos_token = parts[2];
  }
  const auto made = Tokenizer::from_json(parts[0], std::move(config));
  if (!made.ok()) {
    require_refusal(made.status(), "");
    return;
  }
  const bool faithful = is_faithful(spec.value());
  const std::array<std::string_view, 5> texts{"", "a b  ab\n ", "\xC3\xA9\x65\xCC\x81 \xE4\xBD\xA0",
                                              parts[1], parts[0].substr(0, kSliceBytes)};
  for (const std::string_view text : texts) {
    try_text(made.value(), faithful, text);
  }
  static_cast<void>(made.value().decode(std::array{-1, 0, 1, 1 << 30}, SpecialTokenText::kKeep));
}

}  // namespace tidemill::fuzz
