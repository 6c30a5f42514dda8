// SPDX-License-Identifier: Apache-2.0
// Fuzzes JSON schemas. The input is a schema and, after a NUL byte, choices. A schema that is
// accepted is followed along a text: each byte of the choices picks one of the bytes that may
// follow.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engines/constraint/constraint.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

constexpr std::int32_t kEnd = 256;

std::shared_ptr<const engines::TokenIndex> bytes_and_end() {
  static const std::string bytes = [] {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) {
      all += static_cast<char>(byte);
    }
    return all;
  }();
  static const auto index =
      std::make_shared<const engines::TokenIndex>(kEnd + 1, [](std::int32_t token) {
        return token < kEnd ? std::string_view(bytes).substr(static_cast<std::size_t>(token), 1)
                            : std::string_view();
      });
  return index;
}

// Returns the tokens of a mask.
std::vector<std::int32_t> tokens_of(std::span<const std::uint64_t> words) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; token <= kEnd; ++token) {
    if ((words[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1U) != 0) {
      tokens.push_back(token);
    }
  }
  return tokens;
}

}  // namespace

void json_schema(std::string_view input) {
  const auto parts = parts_of(input, 2);
  const auto schema = parse_json(parts[0], {.max_depth = 32});
  if (!schema.ok()) {
    return;
  }
  std::string refused;
  auto grammar = engines::json_schema_grammar(schema.value(), "schema", refused);
  if (!grammar.ok()) {
    require_refusal(grammar.status(), "schema");
    require(refused.starts_with("schema"), "a refusal has a path");
    return;
  }
  engines::ConstraintState state(
      std::make_shared<const engines::Constraint>(std::move(grammar).value(), bytes_and_end()));
  std::vector<std::uint64_t> words(engines::mask_words(kEnd + 1));
  const std::int32_t ends[] = {kEnd};
  std::string text;
  for (const char choice : parts[1]) {
    const Status made = state.mask(ends, words);
    if (made.code() == Errc::kResourceExhausted) {
      return;  // too ambiguous
    }
    require_ok(made, "a text can always go on or end");
    const auto tokens = tokens_of(words);
    const std::int32_t token = tokens[static_cast<unsigned char>(choice) % tokens.size()];
    require((words[kEnd / 64] >> (kEnd % 64) & 1U) == (state.may_end() ? 1U : 0U),
            "the end is allowed where the text may end");
    if (token == kEnd) {
      const auto value = parse_json(text);
      require(value.ok() || value.status().message().find("occurs twice") != std::string::npos ||
                  value.status().code() == Errc::kInvalidArgument,
              "a complete text is JSON");
      return;
    }
    const Status taken = state.accept(token);
    if (taken.code() == Errc::kResourceExhausted) {
      return;
    }
    require_ok(taken, "a token of the mask can follow");
    text += static_cast<char>(token);
  }
}

}  // namespace tidemill::fuzz
