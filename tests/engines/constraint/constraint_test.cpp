// SPDX-License-Identifier: Apache-2.0
// Constraints, their states, calls of tools, and the cache.
#include "engines/constraint/constraint.hpp"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engines/constraint/constraint_cache.hpp"
#include "tests/engines/constraint/constraint_fixture.hpp"

namespace tidemill {
namespace {

using engines::CallableTool;
using engines::Constraint;
using engines::ConstraintState;
using engines::ToolCallCount;
using engines::ToolCallForm;

std::vector<std::uint64_t> mask_of(const ConstraintState& state, std::size_t vocabulary = 257) {
  std::vector<std::uint64_t> words(engines::mask_words(static_cast<std::int64_t>(vocabulary)));
  const std::int32_t ends[] = {test::kEndToken};
  const Status made = state.mask(ends, words);
  EXPECT_TRUE(made.ok()) << made.to_string();
  return words;
}

std::string allowed_bytes(const ConstraintState& state) {
  const auto words = mask_of(state);
  std::string out;
  for (std::size_t i = 0; i < 256; ++i) {
    if ((words[i / 64] >> (i % 64) & 1U) != 0) {
      out += static_cast<char>(i);
    }
  }
  return out + ((words[4] & 1U) != 0 ? "<end>" : "");
}

TEST(ConstraintTest, TheEndIsAllowedOnlyAfterACompleteValue) {
  ConstraintState state(
      test::byte_constraint(R"({"type": "integer", "minimum": 0, "maximum": 12})"));
  EXPECT_EQ(allowed_bytes(state), "0123456789");
  EXPECT_FALSE(state.may_end());
  ASSERT_TRUE(state.accept('1').ok());
  EXPECT_EQ(allowed_bytes(state), "012<end>");
  EXPECT_TRUE(state.may_end());
  EXPECT_FALSE(state.must_end());
  ASSERT_TRUE(state.accept('2').ok());
  EXPECT_EQ(allowed_bytes(state), "<end>");
  EXPECT_TRUE(state.must_end());
}

TEST(ConstraintTest, WhiteSpaceIsBounded) {
  ConstraintState state(
      test::byte_constraint(R"({"type": "object", "properties": {"a": {"type": "null"},
      "b": {"type": "null"}}, "required": ["a", "b"]})"));
  for (const char c : std::string_view("{\"a\": ")) {
    ASSERT_TRUE(state.accept(static_cast<unsigned char>(c)).ok()) << c;
  }
  EXPECT_EQ(allowed_bytes(state), "n");
  for (const char c : std::string_view("null, ")) {
    ASSERT_TRUE(state.accept(static_cast<unsigned char>(c)).ok()) << c;
  }
  EXPECT_EQ(allowed_bytes(state), "\"");
}

TEST(ConstraintTest, ARefusedTokenLeavesTheStateUnchanged) {
  ConstraintState state(test::byte_constraint(R"({"const": true})"));
  ASSERT_TRUE(state.accept('t').ok());
  EXPECT_EQ(state.accept('x').message(), "token 120 cannot follow in this constraint");
  EXPECT_EQ(state.accept(test::kEndToken).code(), Errc::kInvalidArgument);
  EXPECT_EQ(state.accept(9999).code(), Errc::kInvalidArgument);
  EXPECT_EQ(allowed_bytes(state), "r");
}

TEST(ConstraintTest, CopiesAreIndependent) {
  ConstraintState state(test::byte_constraint(R"({"enum": ["a", "b"]})"));
  ASSERT_TRUE(state.accept('"').ok());
  ConstraintState copy = state;
  ASSERT_TRUE(copy.accept('a').ok());
  EXPECT_EQ(allowed_bytes(state), "ab");
  EXPECT_EQ(allowed_bytes(copy), "\"");
}

TEST(ConstraintTest, AMaskWithoutTokensIsAnError) {
  const std::vector<std::string> tokens{"a", "{"};
  const auto constraint = std::make_shared<const Constraint>(
      test::grammar_of(R"({"type": "object"})").value(), test::index_of(tokens));
  ConstraintState state(constraint);
  std::vector<std::uint64_t> words(1);
  ASSERT_TRUE(state.mask({}, words).ok());
  EXPECT_EQ(words[0], 2U);
  ASSERT_TRUE(state.accept(1).ok());
  EXPECT_EQ(state.mask({}, words).message(), "no token can follow in this constraint");
}

TEST(ConstraintTest, AmbiguousSchemasFail) {
  // Each level doubles the ways to read "[".
  const auto constraint = test::byte_constraint(
      R"({"$defs": {"v": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/v"}},
          {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/v"}}]}}, "$ref": "#/$defs/v"})");
  ConstraintState state(constraint);
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    status = state.accept('[');
  }
  EXPECT_EQ(status.code(), Errc::kResourceExhausted) << status.to_string();
}

TEST(ConstraintTest, LittleMemoryGivesTheSameMasks) {
  const auto tokens = test::synthetic_tokens(3000, 5);
  const auto index = test::index_of(tokens);
  const auto large =
      std::make_shared<const Constraint>(engines::json_object_grammar().value(), index);
  const auto small =
      std::make_shared<const Constraint>(engines::json_object_grammar().value(), index, 1);
  ConstraintState a(large);
  ConstraintState b(small);
  for (const char c : std::string_view(R"({"a": [1, {"b": "x"}], "c": "y"})")) {
    ASSERT_EQ(mask_of(a, tokens.size()), mask_of(b, tokens.size()));
    ASSERT_TRUE(a.accept(static_cast<unsigned char>(c)).ok());
    ASSERT_TRUE(b.accept(static_cast<unsigned char>(c)).ok());
  }
  EXPECT_TRUE(a.must_end());
}

TEST(ConstraintTest, StatesOfOneConstraintMayBeUsedConcurrently) {
  const auto tokens = test::synthetic_tokens(2000, 6);
  const auto constraint = std::make_shared<const Constraint>(engines::json_object_grammar().value(),
                                                             test::index_of(tokens));
  constexpr std::string_view kText = R"({"a": [1, {"b": "x"}, [[]]], "c": "y"})";
  std::vector<std::vector<std::uint64_t>> last(4);
  std::vector<std::thread> threads;
  for (auto& words : last) {
    threads.emplace_back([&] {
      ConstraintState state(constraint);
      for (const char c : kText) {
        words = mask_of(state, tokens.size());
        EXPECT_TRUE(state.accept(static_cast<unsigned char>(c)).ok());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& words : last) {
    EXPECT_EQ(words, last.front());
  }
}

TEST(ConstraintTest, ToolCallsWithTags) {
  const Json parameters =
      parse_json(
          R"({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})")
          .value();
  const std::vector<CallableTool> tools{{"add", &parameters, "tools[0]"}, {"now", nullptr, ""}};
  std::string refused;
  const auto constraint_of = [&](ToolCallForm form, ToolCallCount count) {
    return std::make_shared<const Constraint>(
        engines::tool_call_grammar(tools, form, count, refused).value(), test::byte_index());
  };
  const std::string add =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>";
  const std::string now = "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>";
  const auto one = constraint_of(ToolCallForm::kTags, ToolCallCount::kOne);
  const auto more = constraint_of(ToolCallForm::kTags, ToolCallCount::kOneOrMore);
  const auto plain = constraint_of(ToolCallForm::kPlain, ToolCallCount::kOneOrMore);
  EXPECT_TRUE(test::read_text(one, add).complete);
  EXPECT_TRUE(test::read_text(one, now).complete);
  EXPECT_FALSE(test::read_text(one, add + "\n" + now).fits);
  EXPECT_TRUE(test::read_text(more, add + "\n" + now + "\n" + add).complete);
  EXPECT_FALSE(test::read_text(one, "<tool_call>\n{\"name\": \"sub\"").fits);
  EXPECT_FALSE(test::read_text(one, "<tool_call>\n{\"name\": \"add\", \"arguments\": {}").fits);
  EXPECT_TRUE(test::read_text(plain, R"({"name": "add", "parameters": {"x": 2}})").complete);
  EXPECT_TRUE(test::read_text(plain, R"({"name": "add", "arguments": {"x": 2}})").complete);
  EXPECT_FALSE(test::read_text(plain, "text").fits);
}

TEST(ConstraintTest, ToolSchemasAreRefusedByPath) {
  const Json bad = parse_json(R"({"not": {}})").value();
  const std::vector<CallableTool> tools{{"f", &bad, "tools[0].function.parameters"}};
  std::string refused;
  const auto grammar =
      engines::tool_call_grammar(tools, ToolCallForm::kTags, ToolCallCount::kOne, refused);
  EXPECT_EQ(grammar.status().message(),
            "tools[0].function.parameters.not: this keyword is not supported");
  EXPECT_EQ(refused, "tools[0].function.parameters.not");
}

TEST(ConstraintCacheTest, KeepsTheLastUsed) {
  engines::ConstraintCache cache(
      engines::Tokenizer::load(std::string(TIDEMILL_SOURCE_DIR) + "/examples/models/arithmetic")
          .value(),
      257);
  int compiled = 0;
  const auto get = [&](const std::string& key) {
    return cache
        .get(key,
             [&] {
               ++compiled;
               return engines::json_object_grammar();
             })
        .value();
  };
  const auto first = get("first");
  EXPECT_EQ(get("first"), first);
  EXPECT_EQ(compiled, 1);
  for (std::size_t i = 1; i < engines::ConstraintCache::kMaxConstraints; ++i) {
    get(std::to_string(i));
  }
  EXPECT_EQ(get("first"), first);  // and is the last used again
  get("one more");
  EXPECT_EQ(get("first"), first);
  const int before = compiled;
  get("1");  // was dropped
  EXPECT_EQ(compiled, before + 1);
  const auto failed =
      cache.get("bad", []() -> Result<engines::Grammar> { return invalid_argument("no"); });
  EXPECT_EQ(failed.status().message(), "no");
}

}  // namespace
}  // namespace tidemill
