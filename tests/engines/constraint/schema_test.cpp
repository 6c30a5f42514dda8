// SPDX-License-Identifier: Apache-2.0
// What each keyword of a schema permits and refuses, and which schemas are refused.
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/constraint/constraint_fixture.hpp"

namespace tidemill {
namespace {

struct SchemaCase {
  std::string schema;
  std::vector<std::string> complete;
  std::vector<std::string> wrong;  // not complete: they do not fit, or are only a beginning
};

std::vector<SchemaCase> schema_cases() {
  return {
      {R"({"type": "string"})",
       {R"("")", R"("a b")", "\"\xC3\xA9\xF0\x9F\x98\x80\"", R"("\"\\\/\b\n\u00e9")",
        R"("\ud83d\ude00")"},
       {R"("a)", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xC3\"", "\"\xC0\x80\"",
        "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", R"( "")", R"("" )"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("abc")", "\"\xC3\xA9z\"", R"("\n\u00e9\ud83d\ude00")"},
       {R"("a")", R"("abcd")", "\"\xC3\xA9\"", R"("\n")"}},
      {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^[a-c]+-\\d{2,3}$"})",
       {R"("a-12")", R"("cab-123")"},
       {R"("-12")", R"("a-1")", R"("a-1234")", R"("d-12")", R"(" a-12")"}},
      {R"({"type": "string", "pattern": "ab|^x"})",
       {R"("ab")", R"("zabz")", R"("x")", R"("xyz")",
        "\"\xC3\xA9"
        R"(ab")"},
       {R"("zx")", R"("a")", R"("")"}},
      {R"({"type": "string", "pattern": "^(?:\\\\|[\"\\n]|[^\\x00-z]{2}|.?z)$"})",
       {R"("\\")", R"("\"")", R"("\n")", R"("~~")", "\"\xC3\xA9\xC3\xA9\"", R"("z")", R"("az")"},
       {R"("aa")", R"("~")", R"("/")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-28")", R"("1999-12-31")"},
       {R"("2024-02-30")", R"("2024-13-01")", R"("2024-04-31")", R"("24-01-01")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-02-28T23:59:59Z")", R"("2024-02-28T00:00:00.5+01:00")"},
       {R"("2024-02-28 23:59:59Z")", R"("2024-02-28T24:00:00Z")", R"("2024-02-28T23:59:59")"}},
      {R"({"type": "string", "format": "time"})", {R"("12:30:00Z")"}, {R"("12:30Z")"}},
      {R"({"type": "string", "format": "uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567e89b12d3a456426614174000")"}},
      {R"({"type": "string", "format": "email"})",
       {R"("a.b@example.com")", R"("x@a-b.org")"},
       {R"("a@b")", R"("@b.com")", R"("a..b@c.com")", R"("a@.com")"}},
      {R"({"type": "string", "format": "ipv4"})", {R"("10.0.255.1")"}, {R"("10.0.256.1")"}},
      {R"({"type": "integer"})",
       {"0", "-1", "42", "999999999999999999"},
       {"-0", "01", "+1", "1.0", "1e3", "-", "1000000000000000000"}},
      {R"({"type": "integer", "minimum": -12, "maximum": 105})",
       {"-12", "-9", "-1", "0", "7", "99", "100", "105"},
       {"-13", "-20", "106", "110", "200", "1000"}},
      {R"({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 11})",
       {"10"},
       {"9", "11"}},
      {R"({"type": "integer", "minimum": 0.5})", {"1", "12"}, {"0", "-1"}},
      {R"({"type": "integer", "maximum": -5})", {"-5", "-123"}, {"-4", "0", "5"}},
      {R"({"type": "number"})",
       {"0", "-0", "1.5", "-2e10", "3E-7", "0.001"},
       {".5", "1.", "01.5", "1e", "1e+", "1e100", "NaN", "--1"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})",
       {"0", "0.5", "1", "1.0", "0.999"},
       {"1.5", "1.01", "-0.1", "2", "1e0"}},
      {R"({"type": "number", "exclusiveMinimum": 0})",
       {"0.5", "0.01", "1", "12.5"},
       {"0", "0.0", "-1"}},
      {R"({"type": "number", "minimum": -2, "exclusiveMaximum": 3})",
       {"-2", "-2.0", "-1.5", "-0.5", "0", "2.9", "2"},
       {"-2.1", "3", "3.0", "4"}},
      {R"({"type": "number", "maximum": -3})", {"-3", "-3.5", "-44"}, {"-2.9", "0", "3"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "null", "t"}},
      {R"({"type": ["string", "null"]})", {"null", R"("null")"}, {"1", "nul"}},
      {R"({"type": ["integer", "number"]})", {"1", "1.5"}, {"x"}},
      {R"({"enum": ["red", 1, null, {"a": [1, 2]}, true]})",
       {R"("red")", "1", "null", R"({"a": [1, 2]})", R"({"a":[1,2]})", "true"},
       {R"("blue")", "12", R"({"a":[1]})"}},
      {R"({"type": "string", "enum": ["a", 1, "b\"\n\u0001"]})",
       {R"("a")", R"("b\"\n\u0001")"},
       {"1", R"("b")"}},
      {R"({"const": 5})", {"5"}, {"55", "4"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})",
       {"12", R"("a")"},
       {R"("ab")", "true"}},
      {R"({"oneOf": [{"const": "a"}, {"const": "ab"}]})", {R"("a")", R"("ab")"}, {R"("abc")"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
           "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]},
                     {"properties": {"c": {"const": 2}}, "required": ["c"]}]})",
       {R"({"a":1,"b":1})", R"({"a": 1, "c": 2})"},
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"},
           "c": {"type": "null"}}, "required": ["b"]})",
       {R"({"b":true})", R"({"a":1,"b":true})", R"({"a": 1, "b": true, "c": null})",
        R"({"b":false,"c":null})"},
       {"{}", R"({"a":1})", R"({"a":1,"c":null})", R"({"b":true,})", R"({"b":true,"a":1})",
        R"({"b":true,"d":1})", R"({"b":  true})", R"({ "b":true})", R"({"b":true }",)"}},
      {R"({"type": "object", "properties": {}, "additionalProperties": false})",
       {"{}"},
       {R"({"a":1})"}},
      {R"({"type": "object", "properties": {"id": {"type": "integer"}, "i\"": {"type": "null"}},
           "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"id":1})", R"({"id":1,"x":true,"y":false})", R"({"x":true})", R"({"i":true})",
        R"({"idx":true})", R"({"i\"":null,"i\"x":true})", "{\"\xC3\xA9\":true}"},
       {R"({"id":true})", R"({"x":1})", R"({"x":true,"id":1})", R"({"x":true,"id":true})",
        R"({"\u0069d":true})", R"({"i\"":true})"}},
      {R"({"type": "object", "required": ["z"], "additionalProperties": {"type": "integer"}})",
       {R"({"z":1})", R"({"z":1,"y":2})"},
       {"{}", R"({"y":2})"}},
      {R"({"type": "object"})",
       {"{}", R"({"a":[1,{"b":null}],"":"x"})"},
       {"[]", R"({"a"})", R"({"a":1,})", "{,}"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2]", "[1,2,3]"},
       {"[]", "[1,2,3,4]", "[1,]", "[,1]", R"(["a"])"}},
      {R"({"type": "array", "items": {"type": "boolean"}})",
       {"[]", "[true]", "[true,false,true,true]"},
       {"[1]", "[true"}},
      {R"({"type": "array", "minItems": 2})", {"[1,2]", R"([{}, [], "a"])"}, {"[]", "[1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}})",
       {"[]", "[1]", R"([1,"a"])", R"([1,"a",null,null])"},
       {R"(["a"])", R"([1,"a",1])"}},
      {R"({"prefixItems": [{"type": "integer"}], "minItems": 1})", {"[1]"}, {"[]", "[1,2]"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"$ref": "#/$defs/b"}],
           "$defs": {"b": {"type": "object", "properties": {"a": {"minimum": 3}, "b": {"type": "null"}}}}})",
       {R"({"a":3})", R"({"a":7,"b":null})"},
       {R"({"a":2})", R"({"b":null})"}},
      {R"({"$ref": "#/definitions/a~1b", "maximum": 4,
           "definitions": {"a/b": {"type": "integer", "minimum": 2, "title": "t"}}})",
       {"2", "4"},
       {"1", "5"}},
      {R"({"type": "object", "properties": {"v": {"type": "integer"},
           "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["v", "next"]})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
      {"true", {"1", R"({"a":1})", R"("x")", "[null,1.5]"}, {"", "x"}},
      {R"({"description": "any", "default": 3, "x-note": 1})", {"1", "{}"}, {"?"}},
      {R"({"type": "object", "properties": {"a": false, "b": {"type": "integer"}}})",
       {"{}", R"({"b":1})"},
       {R"({"a":1})"}},
  };
}

TEST(SchemaTest, TextsThatSatisfyTheSchemaAreComplete) {
  std::size_t texts = 0;
  for (const SchemaCase& one : schema_cases()) {
    SCOPED_TRACE(one.schema);
    const auto grammar = test::grammar_of(one.schema);
    ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
    const auto constraint =
        std::make_shared<const engines::Constraint>(grammar.value(), test::byte_index());
    for (const std::string& text : one.complete) {
      EXPECT_TRUE(test::read_text(constraint, text).complete) << text;
      ++texts;
    }
    for (const std::string& text : one.wrong) {
      EXPECT_FALSE(test::read_text(constraint, text).complete) << text;
      ++texts;
    }
  }
  EXPECT_GT(texts, 250U);
}

struct RefusedSchema {
  std::string schema;
  std::string message;
};

TEST(SchemaTest, RefusalsNameThePath) {
  const std::vector<RefusedSchema> cases = {
      {"1", "schema: a schema must be an object or a boolean"},
      {R"({"properties": {"a": {"not": {}}}})",
       "schema.properties.a.not: this keyword is not supported"},
      {R"({"type": "object", "patternProperties": {}})",
       "schema.patternProperties: this keyword is not supported"},
      {R"({"type": "strin"})",
       "schema.type: must be object, array, string, number, integer, boolean or null, or a list of "
       "these"},
      {R"({"anyOf": [{}, {"items": [{}]}]})",
       "schema.anyOf[1].items: must be a schema; use prefixItems for a list of them"},
      {R"({"anyOf": []})", "schema.anyOf: must be a list of at least one schema"},
      {R"({"$ref": "#/$defs/x"})", "schema.$ref: there is nothing at \"#/$defs/x\""},
      {R"({"$ref": "http://x"})",
       "schema.$ref: only references within the schema, such as #/$defs/NAME, are supported"},
      {R"j({"properties": {"a": {"type": "string", "pattern": "a(?=b)"}}})j",
       "schema.properties.a.pattern: offset 3: only groups without names and lookaround are "
       "supported"},
      {R"({"type": "string", "pattern": "\\1"})",
       "schema.pattern: offset 2: an escape that is not supported"},
      {R"({"type": "string", "pattern": "a**"})",
       "schema.pattern: offset 2: a quantifier must follow a character or a group"},
      {R"j({"type": "string", "pattern": "a)"})j", "schema.pattern: offset 1: an unmatched )"},
      {R"({"type": "string", "pattern": "[b-a]"})",
       "schema.pattern: offset 4: a range must be of two characters in order"},
      {R"({"type": "string", "format": "uri"})",
       "schema.format: must be date, time, date-time, uuid, email or ipv4; no other is supported"},
      {R"({"type": "string", "pattern": "a", "minLength": 3})",
       "schema.pattern: is supported only without the other one and without minLength and "
       "maxLength"},
      {R"({"type": "string", "maxLength": 100000})",
       "schema.maxLength: must be an integer from 0 to 10000"},
      {R"({"type": "number", "minimum": 0.5})",
       "schema.minimum: must be an integer of at most 18 digits; other limits are not supported"},
      {R"({"enum": ["a"], "minLength": 1})",
       "schema.minLength: is not supported beside enum or const"},
      {R"({"properties": {"a": {}}, "required": ["b"], "additionalProperties": false})",
       "schema.required: \"b\" is not a property"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})",
       "schema.allOf: two different values of pattern cannot be merged"},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false},
                     {"properties": {"b": {}}}]})",
       "schema.allOf: additionalProperties cannot be merged with other properties"},
      {R"({"allOf": [{"$ref": "#"}]})",
       "schema.allOf: more than 32 allOf and $ref inside each other"},
      {R"({"$ref": "#"})", "schema: no value can satisfy the schema within 60 levels of nesting"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})",
       "schema: a schema refers to itself without a value in between"},
      {R"({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]},
           "b": {"allOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/c"}]},
           "c": {"allOf": [{"$ref": "#/$defs/d"}, {"$ref": "#/$defs/d"}, {"$ref": "#/$defs/d"}]},
           "d": {"allOf": [{"$ref": "#/$defs/e"}, {"$ref": "#/$defs/e"}, {"$ref": "#/$defs/e"}]},
           "e": {"allOf": [{"$ref": "#/$defs/f"}, {"$ref": "#/$defs/f"}, {"$ref": "#/$defs/f"}]},
           "f": {"allOf": [{}, {}, {}, {}, {}, {}, {}]}}, "allOf": [{"$ref": "#/$defs/a"}]})",
       "schema.allOf: more than 1000 schemas to merge"},
      {R"({"enum": []})", "schema: no value can satisfy the schema within 60 levels of nesting"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})",
       "schema: no value can satisfy the schema within 60 levels of nesting"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "schema: no value can satisfy the schema within 60 levels of nesting"},
      {R"({"type": "string", "pattern": "^(a|b)*a(a|b){40}$"})",
       "schema: the schema is too large: more than 16384 states"},
      {R"({"type": "string", "pattern": "(a{4000}){4000}"})",
       "schema: needs more than 4096 values or 400000 states"},
  };
  for (const RefusedSchema& one : cases) {
    SCOPED_TRACE(one.schema);
    const auto grammar = test::grammar_of(one.schema);
    ASSERT_FALSE(grammar.ok());
    EXPECT_EQ(grammar.status().message(), one.message);
  }
}

TEST(SchemaTest, RefusalsReturnThePath) {
  std::string refused;
  const Json schema = parse_json(R"({"properties": {"a b": {"not": {}}}})").value();
  EXPECT_FALSE(engines::json_schema_grammar(schema, "x.schema", refused).ok());
  EXPECT_EQ(refused, "x.schema.properties.a b.not");
  EXPECT_FALSE(
      engines::json_schema_grammar(Json(Json::Object{{"enum", Json::Array{}}}), "x.schema", refused)
          .ok());
  EXPECT_EQ(refused, "x.schema");
}

}  // namespace
}  // namespace tidemill
