// SPDX-License-Identifier: Apache-2.0
// Tests parsing of YAML: kinds of values, locations, and documents that are refused.
#include "configs/yaml_tree.hpp"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::configs {
namespace {

std::string flow_of(std::string_view text) {
  const auto tree = parse_yaml(text, "t.yaml");
  return tree.ok() ? to_flow_text(tree.value()) : tree.status().message();
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) {
    out += text;
  }
  return out;
}

TEST(YamlTreeTest, KindsOfValues) {
  const auto tree = parse_yaml("a: 1\nb: '1'\nc:\nd: null\ne: [x, {f: y}]\n", "t.yaml");
  ASSERT_TRUE(tree.ok()) << tree.status().message();
  const ConfigNode& root = tree.value();
  EXPECT_EQ(root.find("a")->value.kind, ConfigNode::Kind::kPlain);
  EXPECT_EQ(root.find("b")->value.kind, ConfigNode::Kind::kQuoted);
  EXPECT_EQ(root.find("c")->value.kind, ConfigNode::Kind::kNull);
  EXPECT_EQ(root.find("d")->value.kind, ConfigNode::Kind::kNull);
  EXPECT_EQ(to_flow_text(root.find("e")->value), "[x, {f: y}]");
}

TEST(YamlTreeTest, LocationsAreLines) {
  const auto tree = parse_yaml("# head\na:\n  b: 1\n  c:\nd: [1,\n  2]\n", "t.yaml");
  ASSERT_TRUE(tree.ok());
  const ConfigNode& root = tree.value();
  EXPECT_EQ(to_string(root.location), "t.yaml");
  EXPECT_EQ(to_string(root.find("a")->location), "t.yaml:2");
  EXPECT_EQ(to_string(root.find("a")->value.find("b")->value.location), "t.yaml:3");
  EXPECT_EQ(to_string(root.find("a")->value.find("c")->value.location), "t.yaml:4");
  EXPECT_EQ(to_string(root.find("d")->value.items[1].location), "t.yaml:6");
}

TEST(YamlTreeTest, LineEndsAndByteOrderMarkChangeNothing) {
  const std::string plain = "a: 1\nb:\n  - x\n  - y\n";
  std::string windows;
  for (const char c : plain) {
    windows += c == '\n' ? "\r\n" : std::string(1, c);
  }
  EXPECT_EQ(flow_of(windows), flow_of(plain));
  EXPECT_EQ(flow_of("\xEF\xBB\xBF" + windows), flow_of(plain));
  EXPECT_EQ(parse_yaml(windows, "w").value().find("b")->location.line, 2);
}

TEST(YamlTreeTest, QuotedTextThatLooksLikeAPropertyIsText) {
  EXPECT_EQ(flow_of("a: '*.jsonl'\nb: \"!x\"\nc: '&y'\n'<<': 1\n"),
            "{a: \"*.jsonl\", b: \"!x\", c: \"&y\", \"<<\": 1}");
  EXPECT_EQ(flow_of("a: x&y*z!\n"), R"({a: "x&y*z!"})");
}

TEST(YamlTreeTest, EveryPropertyIsRefusedAtItsLocation) {
  for (const std::string_view text : {"a: &x 1\n", "a: &x\n", "&x a: 1\n", "a: &x [1]\n",
                                      "a: &x {b: 1}\n", "&x\na: 1\n", "a: !!str &x 1\n"}) {
    EXPECT_NE(flow_of(text).find("t.yaml:1: "), std::string::npos) << text << flow_of(text);
  }
  EXPECT_EQ(flow_of("a: &x 1\n"),
            "t.yaml:1: anchors (&name) are not supported; quote text that starts with &");
  for (const std::string_view text : {"a: *x\n", "a: *.jsonl\n", "a: [*x]\n", "*x : 1\n"}) {
    EXPECT_EQ(flow_of(text),
              "t.yaml:1: aliases (*name) are not supported; quote text that starts with *");
  }
  EXPECT_EQ(flow_of("a: &x 1\nb: *x\n").substr(0, 17), "t.yaml:1: anchors");
  for (const std::string_view text :
       {"a: !!int 1\n", "a: !!null null\n", "a: ! 1\n", "a: !x [1]\n", "a: !x {}\n",
        "a: !<tag:x> 1\n", "!!str a: 1\n", "a: !!str\n", "!!map {a: 1}\n", "a: ! 'q'\n"}) {
    EXPECT_EQ(flow_of(text),
              "t.yaml:1: tags (!name) are not supported; quote text that starts with !")
        << text;
  }
}

TEST(YamlTreeTest, QuotesMustBeClosed) {
  EXPECT_EQ(flow_of("a: \"x\\\"\n"), "t.yaml:1: a quote is not closed");
  EXPECT_EQ(flow_of("a: 'x\'\'\n"), "t.yaml:1: a quote is not closed");
  EXPECT_EQ(flow_of("a: \"x\\\"\"\nb: 'x\'\'y'\nc: |\n  \"\n"),
            "{a: \"x\\\"\", b: \"x'y\", c: \"\\\"\\n\"}");
}

TEST(YamlTreeTest, LocationsAreRightAfterMultiByteCharacters) {
  EXPECT_EQ(flow_of("a: \xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8A\nb: \"x\n"),
            "t.yaml:2: a quote is not closed");
  EXPECT_EQ(flow_of("\xEF\xBB\xBF# \xE2\x82\xAC\r\na: [\xC3\xA9, !x null]\r\n"),
            "t.yaml:2: tags (!name) are not supported; quote text that starts with !");
}

TEST(YamlTreeTest, TextIsUtf8AtEveryBound) {
  const auto parsed = [](const std::string& character) {
    return flow_of("a: 1\n# " + character + "\n");
  };
  EXPECT_EQ(parsed("\x7F"), "t.yaml:2: contains the control character U+007F");
  for (const char* character :
       {"\x7E", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(parsed(character), "{a: 1}") << ::testing::PrintToString(character);
  }
  const std::vector<std::pair<const char*, const char*>> broken{
      {"\x80", "no first byte"},
      {"\xBF", "no first byte"},
      {"\xC0\x80", "U+0000 in two bytes"},
      {"\xC1\xBF", "U+007F in two bytes"},
      {"\xE0\x80\x80", "U+0000 in three bytes"},
      {"\xE0\x9F\xBF", "U+07FF in three bytes"},
      {"\xF0\x80\x80\x80", "U+0000 in four bytes"},
      {"\xF0\x8F\xBF\xBF", "U+FFFF in four bytes"},
      {"\xED\xA0\x80", "U+D800"},
      {"\xED\xBF\xBF", "U+DFFF"},
      {"\xF4\x90\x80\x80", "U+110000"},
      {"\xF5\x80\x80\x80", "U+140000"},
      {"\xF8\x88\x80\x80\x80", "five bytes"},
      {"\xFF", "no first byte"},
      {"\xC2", "cut after one byte"},
      {"\xE2\x82", "cut after two bytes"},
      {"\xF0\x9F\x98", "cut after three bytes"},
      {"\xC2\xC0", "followed by a first byte"},
      {"\xE2\x82\x7F", "followed by one byte of text"},
      {"\xF0\x9F\x98\xC0", "followed by a first byte"}};
  for (const auto& [text, why] : broken) {
    EXPECT_EQ(parsed(text), "t.yaml:2: is not UTF-8 text") << why;
    EXPECT_EQ(flow_of("a: 1\n# " + std::string(text)), "t.yaml:2: is not UTF-8 text") << why;
  }
}

TEST(YamlTreeTest, DepthIsLimitedTo32) {
  EXPECT_EQ(flow_of(repeated("[", 32) + repeated("]", 32)), repeated("[", 32) + repeated("]", 32));
  EXPECT_EQ(flow_of(repeated("[", 33) + repeated("]", 33)),
            "t.yaml:1: is nested deeper than 32 levels");
}

TEST(YamlTreeTest, NumberOfValuesIsLimited) {
  EXPECT_EQ(flow_of("a: [" + repeated("1,", kMaxYamlValues) + "]"),
            "t.yaml:1: contains more than 100000 values");
}

TEST(YamlTreeTest, SizeIsLimitedToOneMebibyte) {
  const std::string head = "a: 1\n#";
  EXPECT_EQ(flow_of(head + std::string(kMaxYamlBytes - head.size(), 'x')), "{a: 1}");
  EXPECT_EQ(flow_of(head + std::string(kMaxYamlBytes - head.size() + 1, 'x')),
            "t.yaml: is larger than 1 MiB");
}

// Parses a unit of text that is repeated up to the size limit. The test checks that parsing ends at
// all; the time limit is generous because a sanitizer build on a busy machine is slow.
class YamlBombTest : public ::testing::TestWithParam<const char*> {};

TEST_P(YamlBombTest, EndsSoonWithAnErrorOfOneLine) {
  const std::string_view unit = GetParam();
  const std::string bomb = repeated(unit, kMaxYamlBytes / unit.size());
  const auto start = std::chrono::steady_clock::now();
  const std::string outcome = flow_of(bomb);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 20.0);
  EXPECT_EQ(outcome.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Units, YamlBombTest,
                         ::testing::Values("[", "{", "]", "- ", "? ", ": ", "a: ", "- - ",
                                           "{a: ", "[{", "&a ", "*a ", "!t ", "!!", "\"", "'", "| ",
                                           "> ", "%", "---\n", "...\n", "a:\n", " ", "\n", "\t",
                                           "#", "a", "\\", "a,", "[a]: ", "\n ", "- a\n", "-\n",
                                           "a: |\n b\n", "\xC3\xA9", "\r\n", "\"\\u00e9\" "));

}  // namespace
}  // namespace tidemill::configs
