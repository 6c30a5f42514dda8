// SPDX-License-Identifier: Apache-2.0
// Compares masks with an oracle that tests each token of the vocabulary alone, byte by byte, on
// random schemas and along random texts, and reads the texts that come out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text/utf8.hpp"
#include "engines/constraint/constraint_cache.hpp"
#include "tests/engines/constraint/constraint_fixture.hpp"

namespace tidemill {
namespace {

using engines::Constraint;
using engines::ConstraintState;
using engines::Grammar;
using test::kEndToken;

// -- the oracle -----------------------------------------------------------------------------------

// Follows an automaton with sets of whole stacks. A stack has the states to return to and, at the
// top, the current one.
class NaiveReader {
public:
  using Stack = std::vector<std::int32_t>;

  explicit NaiveReader(const Grammar& grammar) : grammar_(&grammar), stacks_{{grammar.start}} {}

  bool take(std::string_view bytes) {
    for (const char c : bytes) {
      std::set<Stack> next;
      for (Stack stack : stacks_) {
        for (;;) {  // the state itself, and the states in which it may return
          push_after(stack, static_cast<std::uint8_t>(c), next);
          if (!grammar_->accepts_at(stack.back()) || stack.size() == 1) {
            break;
          }
          stack.pop_back();
        }
      }
      stacks_ = std::move(next);
    }
    return !stacks_.empty();
  }

  bool may_end() const {
    return std::ranges::any_of(stacks_, [&](const Stack& stack) {
      return std::ranges::all_of(stack,
                                 [&](std::int32_t state) { return grammar_->accepts_at(state); });
    });
  }

private:
  void push_after(const Stack& stack, std::uint8_t byte, std::set<Stack>& next) const {
    for (const engines::GrammarEntry& entry : grammar_->entries_of(stack.back())) {
      const std::int32_t to = grammar_->after(entry.state, byte);
      Stack longer = stack;
      longer.pop_back();
      for (const std::int32_t frame : grammar_->frames_of(entry)) {
        longer.push_back(frame);
      }
      longer.push_back(to);
      const auto depth = static_cast<std::int32_t>(longer.size()) - 1;
      const auto outer = static_cast<std::int32_t>(stack.size()) - 1;
      if (to >= 0 && depth + grammar_->need_of(to) <= grammar_->max_depth &&
          outer + entry.reach <= grammar_->max_depth) {
        next.insert(longer);
      }
    }
  }

  const Grammar* grammar_;
  std::set<Stack> stacks_;
};

std::vector<std::uint64_t> naive_mask(const NaiveReader& reader,
                                      const std::vector<std::string>& tokens) {
  std::vector<std::uint64_t> words(engines::mask_words(std::ssize(tokens)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool allowed = static_cast<std::int32_t>(i) == kEndToken
                             ? reader.may_end()
                             : !tokens[i].empty() && NaiveReader(reader).take(tokens[i]);
    words[i / 64] |= std::uint64_t{allowed} << (i % 64);
  }
  return words;
}

// -- random schemas -------------------------------------------------------------------------------

class SchemaMaker {
public:
  explicit SchemaMaker(RandomStream& random) : random_(random) {}

  Json make() {
    Json::Object schema = object(0);
    schema.push_back({"$defs", Json::Object{{"node", Json(object(2))}}});
    return schema;
  }

private:
  Json any(int depth) {
    switch (random_.below(depth > 3 ? 6 : 11)) {
      case 0: return Json::Object{{"type", "string"}};
      case 1: return string();
      case 2: return Json::Object{{"type", "integer"}, {"minimum", int(random_.below(50)) - 25}};
      case 3: return Json::Object{{"type", Json::Array{"number", "null"}}};
      case 4: return Json::Object{{"enum", Json::Array{"a", "ab", 1, 12, true, "\xC3\xA9\""}}};
      case 5: return Json::Object{{"type", "boolean"}};
      case 6: return array(depth);
      case 7: return Json::Object{{"anyOf", Json::Array{any(depth + 1), any(depth + 1)}}};
      case 8:
        return Json::Object{{"anyOf", Json::Array{Json::Object{{"$ref", "#/$defs/node"}},
                                                  Json::Object{{"type", "null"}}}}};
      case 9: return Json(true);
      default: return object(depth + 1);
    }
  }

  Json string() {
    const int min = int(random_.below(4));
    return Json::Object{
        {"type", "string"}, {"minLength", min}, {"maxLength", min + int(random_.below(6))}};
  }

  Json array(int depth) {
    Json::Object out{{"type", "array"}, {"items", any(depth + 1)}};
    const int min = int(random_.below(3));
    out.push_back({"minItems", min});
    if (random_.below(2) == 0) {
      out.push_back({"maxItems", min + int(random_.below(3))});
    }
    if (random_.below(3) == 0) {
      out.push_back({"prefixItems", Json::Array{any(depth + 1)}});
    }
    return out;
  }

  Json::Object object(int depth) {
    Json::Object properties;
    Json::Array required;
    for (const char* name : {"a", "name", "id", "na\"me", "\xC3\xA9"}) {
      if (random_.below(2) == 0) {
        properties.push_back({name, any(depth + 1)});
        if (random_.below(2) == 0) {
          required.emplace_back(name);
        }
      }
    }
    Json::Object out{{"type", "object"},
                     {"properties", std::move(properties)},
                     {"required", std::move(required)}};
    switch (random_.below(3)) {
      case 0: out.push_back({"additionalProperties", false}); break;
      case 1: out.push_back({"additionalProperties", any(depth + 2)}); break;
      default: break;
    }
    return out;
  }

  RandomStream& random_;
};

// -- an independent validator of what the maker uses ----------------------------------------------

class Validator {
public:
  explicit Validator(const Json& root) : root_(root) {}

  bool fits(const Json& value, const Json& schema) const {
    if (const bool* all = schema.if_bool()) {
      return *all;
    }
    if (schema.find("$ref") != nullptr) {
      return fits(value, *root_.find("$defs")->find("node"));
    }
    if (const Json* any = schema.find("anyOf")) {
      return std::ranges::any_of(*any->if_array(),
                                 [&](const Json& one) { return fits(value, one); });
    }
    if (const Json* values = schema.find("enum")) {
      return std::ranges::any_of(*values->if_array(),
                                 [&](const Json& one) { return one.to_line() == value.to_line(); });
    }
    const Json* type = schema.find("type");
    const Json::Array types = type->if_array() != nullptr ? *type->if_array() : Json::Array{*type};
    return std::ranges::any_of(
        types, [&](const Json& one) { return fits_type(value, *one.if_string(), schema); });
  }

private:
  static std::int64_t count(const Json& schema, const char* name, std::int64_t otherwise) {
    const Json* value = schema.find(name);
    return value == nullptr ? otherwise : *value->if_integer();
  }

  bool fits_type(const Json& value, const std::string& type, const Json& schema) const {
    if (type == "object") {
      return value.if_object() != nullptr && fits_object(value, schema);
    }
    if (type == "array") {
      return value.if_array() != nullptr && fits_array(*value.if_array(), schema);
    }
    if (type == "string") {
      return value.if_string() != nullptr &&
             in(std::int64_t(count_code_points(*value.if_string())), schema, "Length");
    }
    if (type == "integer") {
      return value.if_integer() != nullptr &&
             *value.if_integer() >= count(schema, "minimum", -1000);
    }
    return type == "number" ? value.number().has_value()
                            : (type == "boolean" ? value.if_bool() != nullptr : value.is_null());
  }

  static bool in(std::int64_t size, const Json& schema, const std::string& what) {
    return size >= count(schema, ("min" + what).c_str(), 0) &&
           size <= count(schema, ("max" + what).c_str(), 1'000'000);
  }

  bool fits_array(const Json::Array& items, const Json& schema) const {
    const Json* prefix = schema.find("prefixItems");
    for (std::size_t i = 0; i < items.size(); ++i) {
      const bool is_first = prefix != nullptr && i < prefix->if_array()->size();
      if (!fits(items[i], is_first ? (*prefix->if_array())[i] : *schema.find("items"))) {
        return false;
      }
    }
    return in(std::ssize(items), schema, "Items");
  }

  bool fits_object(const Json& value, const Json& schema) const {
    for (const Json& name : *schema.find("required")->if_array()) {
      if (value.find(*name.if_string()) == nullptr) {
        return false;
      }
    }
    const Json* additional = schema.find("additionalProperties");
    return std::ranges::all_of(*value.if_object(), [&](const Json::Member& member) {
      const Json* known = schema.find("properties")->find(member.name);
      return known != nullptr ? fits(member.value, *known)
                              : (additional == nullptr || fits(member.value, *additional));
    });
  }

  const Json& root_;
};

// -- walks ----------------------------------------------------------------------------------------

bool has(const std::vector<std::uint64_t>& words, std::size_t token) {
  return (words[token / 64] >> (token % 64) & 1U) != 0;
}

// Returns a random token of a mask. Late in a text, returns one that ends values, if there is one.
std::int32_t choose(const std::vector<std::uint64_t>& words, std::size_t num_tokens, bool late,
                    RandomStream& random) {
  if (late) {
    if (has(words, kEndToken)) {
      return kEndToken;
    }
    for (const char c : std::string_view("\"}],:")) {
      if (has(words, static_cast<unsigned char>(c))) {
        return static_cast<unsigned char>(c);
      }
    }
  }
  std::vector<std::int32_t> allowed;
  for (std::size_t i = 0; i < num_tokens; ++i) {
    if (has(words, i)) {
      allowed.push_back(static_cast<std::int32_t>(i));
    }
  }
  return allowed[random.below(allowed.size())];
}

struct WalkResult {
  std::string text;
  std::size_t masks = 0;
};

// Generates a text, and compares every mask of it with the oracle's.
WalkResult walk(const std::shared_ptr<const Constraint>& constraint,
                const std::vector<std::string>& tokens, std::size_t length, RandomStream& random) {
  WalkResult out;
  ConstraintState state(constraint);
  NaiveReader reader(constraint->grammar());
  std::vector<std::uint64_t> words(engines::mask_words(std::ssize(tokens)));
  const std::int32_t ends[] = {kEndToken};
  for (;; ++out.masks) {
    const Status made = state.mask(ends, words);
    EXPECT_TRUE(made.ok()) << made.to_string() << " after " << out.text;
    const bool same = words == naive_mask(reader, tokens);
    EXPECT_TRUE(same) << "after " << out.text;
    EXPECT_EQ(state.may_end(), reader.may_end());
    if (!made.ok() || !same || out.masks > 20'000) {
      ADD_FAILURE() << "no end of " << out.text;
      return out;
    }
    const std::int32_t token = choose(words, tokens.size(), out.masks >= length, random);
    if (token == kEndToken) {
      return out;
    }
    EXPECT_TRUE(state.accept(token).ok());
    const std::string& bytes = tokens[static_cast<std::size_t>(token)];
    EXPECT_TRUE(reader.take(bytes));
    out.text += bytes;
  }
}

struct Totals {
  std::size_t texts = 0;
  std::size_t masks = 0;
  std::size_t repeated_names = 0;
};

void walk_schemas(std::uint64_t seeds, const std::vector<std::string>& tokens, std::size_t length,
                  Totals& totals) {
  const auto index = test::index_of(tokens);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    RandomStream random(seed, tokens.size());
    const Json schema = SchemaMaker(random).make();
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + schema.to_line());
    std::string refused;
    auto grammar = engines::json_schema_grammar(schema, "schema", refused);
    if (!grammar.ok()) {
      // Required properties may need more levels than there are.
      ASSERT_NE(grammar.status().message().find("no value can satisfy"), std::string::npos)
          << grammar.status().to_string();
      continue;
    }
    const auto constraint = std::make_shared<const Constraint>(std::move(grammar).value(), index);
    for (int i = 0; i < 3; ++i) {
      const WalkResult done = walk(constraint, tokens, length, random);
      totals.masks += done.masks;
      const auto parsed = parse_json(done.text);
      if (!parsed.ok() && parsed.status().message().find("occurs twice") != std::string::npos) {
        ++totals.repeated_names;  // of additional properties
        continue;
      }
      ++totals.texts;
      ASSERT_TRUE(parsed.ok()) << parsed.status().to_string() << " in " << done.text;
      ASSERT_TRUE(Validator(schema).fits(parsed.value(), schema)) << done.text;
    }
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

TEST(MaskOracleTest, RandomSchemasAndTexts) {
  Totals totals;
  walk_schemas(60, test::synthetic_tokens(700, 1), 40, totals);
  EXPECT_GT(totals.texts, 100U);
  EXPECT_GT(totals.masks, 3'000U);
  EXPECT_LT(totals.repeated_names, totals.texts / 4);
  RecordProperty("texts", static_cast<int>(totals.texts));
  RecordProperty("masks", static_cast<int>(totals.masks));
}

TEST(MaskOracleTest, LargeVocabulary) {
  Totals totals;
  walk_schemas(2, test::synthetic_tokens(151'936, 2), 4, totals);
  EXPECT_GT(totals.texts, 2U);
}

TEST(MaskOracleTest, ShippedTokenizer) {
  const auto tokenizer =
      engines::Tokenizer::load(std::string(TIDEMILL_SOURCE_DIR) + "/examples/models/arithmetic")
          .value();
  ASSERT_EQ(tokenizer.eos_id(), kEndToken);
  const std::int32_t vocabulary = tokenizer.vocabulary_size() + 3;  // the model's may be larger
  const auto index = engines::index_tokens(tokenizer, vocabulary);
  std::vector<std::string> tokens;
  for (std::int32_t token = 0; token < vocabulary; ++token) {
    const bool in_text = tokenizer.contains(token) && !tokenizer.is_special(token);
    tokens.emplace_back(in_text ? tokenizer.token_bytes(token) : std::string_view());
    EXPECT_EQ(index->bytes(token), tokens.back());
  }
  Totals totals;
  walk_schemas(20, tokens, 100, totals);
  EXPECT_GT(totals.texts, 30U);
}

// The bound on the stack decides masks only near it.
TEST(MaskOracleTest, NestingUpToTheLimit) {
  const auto tokens = test::synthetic_tokens(700, 3);
  const auto constraint = std::make_shared<const Constraint>(engines::json_object_grammar().value(),
                                                             test::index_of(tokens));
  std::string text = "{\"a\":";
  for (int i = 0; i < 70; ++i) {
    text += i % 3 == 0 ? "{\"a\":" : "[";
  }
  ConstraintState state(constraint);
  NaiveReader reader(constraint->grammar());
  std::vector<std::uint64_t> words(engines::mask_words(std::ssize(tokens)));
  std::size_t taken = 0;
  for (const char c : text) {
    ASSERT_TRUE(state.mask({}, words).ok());
    ASSERT_EQ(words, naive_mask(reader, tokens)) << "after " << text.substr(0, taken);
    if (!has(words, static_cast<unsigned char>(c))) {
      break;
    }
    ASSERT_TRUE(state.accept(static_cast<unsigned char>(c)).ok());
    ASSERT_TRUE(reader.take(std::string_view(&c, 1)));
    ++taken;
  }
  EXPECT_LT(taken, text.size());
  // What has begun can be completed.
  RandomStream random(4);
  std::string whole = text.substr(0, taken);
  const std::int32_t ends[] = {kEndToken};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(state.mask(ends, words).ok());
    const std::int32_t token = choose(words, tokens.size(), true, random);
    if (token == kEndToken) {
      break;
    }
    ASSERT_TRUE(state.accept(token).ok());
    whole += tokens[static_cast<std::size_t>(token)];
  }
  EXPECT_TRUE(parse_json(whole).ok()) << whole;
}

}  // namespace
}  // namespace tidemill
