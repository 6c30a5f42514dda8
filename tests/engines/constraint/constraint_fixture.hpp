// SPDX-License-Identifier: Apache-2.0
// Vocabularies and constraints for tests.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engines/constraint/constraint.hpp"

namespace tidemill::test {

/// The token that ends texts, in all vocabularies of these tests.
inline constexpr std::int32_t kEndToken = 256;

/// Returns a vocabulary whose first 256 tokens are the bytes, and the next one ends texts. The
/// others are random pieces of JSON, among them pieces that end several values, repeated pieces and
/// cut characters.
inline std::vector<std::string> synthetic_tokens(std::size_t count, std::uint64_t seed) {
  constexpr auto kPieces = std::to_array<std::string_view>(
      {"{",    "}",     "[",   "]",    "\"",   ",",      ":",        " ",        "\\",
       "\\\"", "\\u00", "e9",  "d83d", "\\u",  "true",   "null",     "fal",      "se",
       "0",    "1",     "42",  "-",    ".5",   "E+",     "name",     "id",       "a",
       "b",    "th",    "ing", "\n",   "\xC3", "\xA9",   "\xC3\xA9", "\xF0\x9F", "\x98\x80",
       "\"}",  "\"]",   "}}",  "]]",   "\": ", "\", \"", "{\"",      "[[",       "<tool_call>"});
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  tokens.emplace_back();
  RandomStream random(seed);
  while (tokens.size() < count) {
    std::string token;
    for (std::uint64_t i = 1 + random.below(5); i > 0; --i) {
      token += kPieces[random.below(kPieces.size())];
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

inline std::shared_ptr<const engines::TokenIndex> index_of(const std::vector<std::string>& tokens) {
  return std::make_shared<const engines::TokenIndex>(
      static_cast<std::int32_t>(tokens.size()), [&](std::int32_t token) {
        return std::string_view(tokens[static_cast<std::size_t>(token)]);
      });
}

/// Returns the bytes and the end token as a vocabulary.
inline std::shared_ptr<const engines::TokenIndex> byte_index() {
  static const auto index = index_of(synthetic_tokens(257, 0));
  return index;
}

/// Whether a text is a beginning of a complete one, and whether it is complete.
struct Reading {
  bool fits = false;
  bool complete = false;
};

/// Reads `text` byte by byte.
inline Reading read_text(const std::shared_ptr<const engines::Constraint>& constraint,
                         std::string_view text) {
  engines::ConstraintState state(constraint);
  for (const char c : text) {
    if (!state.accept(static_cast<unsigned char>(c)).ok()) {
      return {};
    }
  }
  return {true, state.may_end()};
}

/// Compiles a schema given as text.
inline Result<engines::Grammar> grammar_of(std::string_view schema) {
  std::string refused;
  auto json = parse_json(schema);
  if (!json.ok()) {
    return json.status();
  }
  return engines::json_schema_grammar(json.value(), "schema", refused);
}

inline std::shared_ptr<const engines::Constraint> byte_constraint(std::string_view schema) {
  return std::make_shared<const engines::Constraint>(grammar_of(schema).value(), byte_index());
}

}  // namespace tidemill::test
