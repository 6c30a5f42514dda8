// SPDX-License-Identifier: Apache-2.0
#include "base/json/json.hpp"

#include <cstdint>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json/fields.hpp"
#include "base/text/quote.hpp"

namespace tidemill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Json, KeepsOrderAndKinds) {
  const Json json = parse_json(R"({"z":1,"a":[true,null,-2.5,"x"],"big":18446744073709551615,
                                   "exp":1e3})")
                        .value();
  const Json::Object& members = *json.if_object();
  ASSERT_EQ(members.size(), 4U);
  EXPECT_EQ(members[0].name, "z");
  EXPECT_EQ(members[1].name, "a");
  EXPECT_EQ(*json.find("z")->if_integer(), 1);
  EXPECT_EQ(json.find("big")->if_integer(), nullptr);
  EXPECT_EQ(json.find("exp")->if_integer(), nullptr);
  EXPECT_EQ(json.find("exp")->number(), 1000.0);
  const Json::Array& items = *json.find("a")->if_array();
  EXPECT_TRUE(*items[0].if_bool());
  EXPECT_TRUE(items[1].is_null());
  EXPECT_EQ(items[2].number(), -2.5);
  EXPECT_EQ(*items[3].if_string(), "x");
  EXPECT_EQ(json.find("none"), nullptr);
}

TEST(Json, RefusesAnythingButOneDocument) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c :
       std::vector<Case>{{"", "not JSON"},
                         {"{", "not JSON"},
                         {"{} x", "not JSON at byte 4"},
                         {"[1,]", "not JSON"},
                         {"// c\n1", "not JSON"},
                         {"\"\xFF\"", "not JSON"},
                         {"[NaN]", "not JSON"},
                         {"1e999", "not JSON at byte 5: a number is out of range"},
                         {R"({"a":1,"b":{"c":1,"c":2}})", "the name \"c\" occurs twice"},
                         {R"({"a":1,"\u0061":2})", "the name \"a\" occurs twice"}}) {
    const auto json = parse_json(c.text);
    ASSERT_FALSE(json.ok()) << c.text;
    EXPECT_EQ(json.status().code(), Errc::kCorruptData);
    EXPECT_THAT(json.status().message(), HasSubstr(c.message));
  }
}

TEST(Json, ANulByteDoesNotEndTheText) {
  EXPECT_EQ(parse_json(std::string_view("{}\0{", 4)).status().message(), "not JSON at byte 3");
}

TEST(Json, KeepsTheDigitsOfIntegersBeyond64Bits) {
  for (const char* digits : {"9223372036854775808", "18446744073709551615", "-9223372036854775809",
                             "123456789012345678901234567890"}) {
    const auto json = parse_json(digits);
    ASSERT_TRUE(json.ok()) << digits;
    EXPECT_EQ(json.value().if_integer(), nullptr) << digits;
    ASSERT_NE(json.value().if_large_integer(), nullptr) << digits;
    EXPECT_EQ(*json.value().if_large_integer(), digits);
    EXPECT_EQ(json.value().number(), std::stod(digits));
  }
  for (const char* text : {"9223372036854775807", "-9223372036854775808", "1e30", "1.0"}) {
    EXPECT_EQ(parse_json(text).value().if_large_integer(), nullptr) << text;
  }
  EXPECT_EQ(parse_json("18446744073709551615").value().to_line(), "18446744073709551615\n");
}

TEST(Json, EnforcesItsLimits) {
  JsonLimits limits;
  limits.max_bytes = 10;
  EXPECT_THAT(parse_json("[1,2,3,4,5]", limits).status().message(), HasSubstr("at most 10"));
  limits = {};
  limits.max_depth = 2;
  EXPECT_TRUE(parse_json("[[1]]", limits).ok());
  EXPECT_THAT(parse_json("[[[1]]]", limits).status().message(), HasSubstr("deeper than 2"));
  limits = {};
  limits.max_values = 3;
  EXPECT_TRUE(parse_json("[1,2]", limits).ok());
  EXPECT_THAT(parse_json("[1,2,3]", limits).status().message(), HasSubstr("more than 3"));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')).ok());
  const std::size_t deepest = JsonLimits().max_depth;
  EXPECT_TRUE(parse_json(std::string(deepest, '[') + std::string(deepest, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(deepest + 1, '[') + std::string(deepest + 1, ']')).ok());
}

TEST(Json, AcceptsTextAtItsLimits) {
  JsonLimits limits;
  limits.max_bytes = 7;
  EXPECT_TRUE(parse_json("[1,2,3]", limits).ok());
  EXPECT_FALSE(parse_json("[1,2,3] ", limits).ok());
  limits = {};
  limits.max_depth = 2;
  EXPECT_TRUE(parse_json("[{},[]]", limits).ok());
  EXPECT_TRUE(parse_json("{\"a\":[1]}", limits).ok());
  EXPECT_FALSE(parse_json("{\"a\":[[]]}", limits).ok());
  limits = {};
  limits.max_values = 4;  // counts containers, and every item in them
  EXPECT_TRUE(parse_json("[1,[2]]", limits).ok());
  EXPECT_TRUE(parse_json("{\"a\":1,\"b\":{\"c\":2}}", limits).ok());
  EXPECT_FALSE(parse_json("[1,[2,3]]", limits).ok());
}

TEST(Json, IntegersThatFitSixtyFourBitsAreExact) {
  const auto integer = [](const char* text) {
    const Json json = parse_json(text).value();
    return json.if_integer() != nullptr ? std::optional(*json.if_integer()) : std::nullopt;
  };
  EXPECT_EQ(integer("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(integer("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(integer("9223372036854775808"), std::nullopt);
  EXPECT_EQ(integer("-9223372036854775809"), std::nullopt);
  EXPECT_EQ(parse_json("9223372036854775808").value().number(), 9223372036854775808.0);
  EXPECT_EQ(integer("0"), 0);
  EXPECT_EQ(integer("-0"), 0);
  EXPECT_EQ(integer("1.0"), std::nullopt);
}

TEST(Json, WritesTextThatReadsBack) {
  const Json json(Json::Object{{"name", "t\u00FC\n"},
                               {"list", Json::Array{1, 2.5, true, Json()}},
                               {"eps", 1e-05},
                               {"theta", 10000.0},
                               {"empty", Json::Object{}}});
  EXPECT_EQ(json.to_text(),
            "{\n  \"name\": \"t\u00FC\\n\",\n  \"list\": [\n    1,\n    2.5,\n    true,\n    null\n"
            "  ],\n  \"eps\": 1e-05,\n  \"theta\": 10000.0,\n  \"empty\": {}\n}\n");
  EXPECT_EQ(parse_json(json.to_text()).value().to_text(), json.to_text());
}

TEST(JsonFields, TheFirstRefusalIsKeptAndNamesTheLocation) {
  const Json json = parse_json(R"({"n":3,"r":2.5,"s":"x","l":["a","b"],"i":[1,2],"b":false,
                                   "null":null,"bad":"5","sub":{"deep":-1}})")
                        .value();
  JsonFields good(json, "config.json");
  EXPECT_EQ(good.required_integer("n", {1, 3}), 3);
  EXPECT_EQ(good.required_real("r", {}), 2.5);
  EXPECT_EQ(good.real("n", {}), 3.0);
  EXPECT_EQ(good.string("s"), "x");
  EXPECT_EQ(good.boolean("b"), false);
  EXPECT_THAT(*good.strings("l"), ElementsAre("a", "b"));
  EXPECT_THAT(*good.strings("s"), ElementsAre("x"));
  EXPECT_THAT(*good.integers("i", {}), ElementsAre(1, 2));
  EXPECT_THAT(*good.integers("n", {}), ElementsAre(3));
  EXPECT_FALSE(good.has("null"));
  EXPECT_EQ(good.integer("null", {}), std::nullopt);
  EXPECT_TRUE(good.status().ok());

  JsonFields bad(json, "config.json");
  EXPECT_EQ(bad.integer("bad", {1, 9}), std::nullopt);
  EXPECT_EQ(bad.required_integer("missing", {}), 0);
  EXPECT_EQ(bad.status().message(), "config.json: bad: must be an integer from 1 to 9");

  JsonFields missing(json, "config.json");
  EXPECT_EQ(missing.required_integer("missing", {1}), 0);
  EXPECT_EQ(missing.status().message(),
            "config.json: missing: missing; must be an integer of at least 1");

  JsonFields sub(*json.find("sub"), "config.json", "sub.");
  EXPECT_EQ(sub.real("deep", {0.0, 1.0}), std::nullopt);
  EXPECT_EQ(sub.status().message(),
            "config.json: sub.deep: must be a number of at least 0 and at most 1");
  EXPECT_EQ(JsonFields(*json.find("n"), "config.json", "n.").status().message(),
            "config.json: n: must be a JSON object");
  EXPECT_EQ(JsonFields(*json.find("n"), "config.json").status().message(),
            "config.json: must be a JSON object");
}

TEST(JsonFields, RefusesOtherMembers) {
  const Json json = parse_json(R"({"known":1,"other":null,"third":2})").value();
  JsonFields fields(json, "", "outer.");
  fields.refuse_others({"known", "other", "third", "absent"});
  EXPECT_TRUE(fields.status().ok());
  fields.refuse_others({"known", "absent"});
  EXPECT_EQ(fields.status().message(), "outer.other: unknown field");
  EXPECT_EQ(fields.refused(), "outer.other");
}

TEST(JsonFields, EveryKindIsChecked) {
  const Json json = parse_json(R"({"o":{},"mixed":["a",1],"f":1.0,"n":1})").value();
  const auto refusal = [&json](auto read) {
    JsonFields fields(json, "f");
    EXPECT_FALSE(read(fields).has_value());
    return fields.status().message();
  };
  EXPECT_EQ(refusal([](JsonFields& f) { return f.boolean("n"); }), "f: n: must be true or false");
  EXPECT_EQ(refusal([](JsonFields& f) { return f.string("n"); }), "f: n: must be a string");
  EXPECT_EQ(refusal([](JsonFields& f) { return f.real("o", {}); }), "f: o: must be a number");
  EXPECT_EQ(refusal([](JsonFields& f) { return f.integer("f", {}); }),
            "f: f: must be an integer of at least 0");
  EXPECT_EQ(refusal([](JsonFields& f) { return f.strings("mixed"); }),
            "f: mixed: must be a list of strings");
  EXPECT_EQ(refusal([](JsonFields& f) { return f.strings("o"); }),
            "f: o: must be a list of strings");
  EXPECT_EQ(refusal([](JsonFields& f) { return f.integers("mixed", {}); }),
            "f: mixed: must be an integer of at least 0, or a list of these");
}

TEST(Quote, KeepsMessagesShortAndOnOneLine) {
  EXPECT_EQ(quote("plain"), "\"plain\"");
  EXPECT_EQ(quote("a\"\\\n\xC3\xA9"), R"("a\"\\\x0a\xc3\xa9")");
  EXPECT_EQ(quote(std::string(81, 'a')), "\"" + std::string(80, 'a') + "...\"");
  EXPECT_EQ(quote_unless_plain("model.layers[3]"), "model.layers[3]");
  EXPECT_EQ(quote_unless_plain(""), "\"\"");
  EXPECT_EQ(quote_unless_plain("a\nb"), R"("a\x0ab")");
  EXPECT_EQ(quote_unless_plain(std::string(81, 'a')), quote(std::string(81, 'a')));
}

// Each member takes the same time; a search among all members for each would take minutes.
TEST(JsonTest, WritesAnObjectWithManyMembers) {
  Json::Object object;
  for (int i = 0; i < 400'000; ++i) {
    object.push_back({"member " + std::to_string(i), i});
  }
  const auto again = parse_json(Json(std::move(object)).to_line());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value().if_object()->size(), 400'000U);
}

}  // namespace
}  // namespace tidemill
