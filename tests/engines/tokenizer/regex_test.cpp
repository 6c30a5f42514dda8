// SPDX-License-Identifier: Apache-2.0
// Translation of Oniguruma patterns, the patterns that are refused, and the match limit.
#include "engines/tokenizer/regex.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

TEST(Regex, RewritesConstructsThatDifferInPcre2) {
  const std::vector<std::pair<const char*, const char*>> patterns = {
      {R"(\s+(?!\S))", R"(\p{White_Space}+(?!\P{White_Space}))"},
      {R"([^\s\p{L}]|[\S])", R"([^\p{White_Space}\p{L}]|[\P{White_Space}])"},
      {R"(\w)", R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])"},
      {R"([\w-])", R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}-])"},
      {R"(\W)", R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])"},
      {R"(\p{Han}\P{Lu}\p{^N})", R"(\p{sc:Han}\P{Lu}\p{^N})"},
      {R"(\u0041\x{1F600}\x41)", R"(\x{0041}\x{1F600}\x{41})"},
      {R"(\u00fF\x7f\x{aF}\u00410)", R"(\x{00fF}\x{7f}\x{aF}\x{0041}0)"},
      {R"(\p{^Han}\p{Emoji}\p{^Any}\P{White_Space})",
       R"(\p{^sc:Han}\p{Emoji}\p{^Any}\P{White_Space})"},
      {R"((?i:'s)|\p{N}{1,3}| ?[\\\]\[]+)", R"((?i:'s)|\p{N}{1,3}| ?[\\\]\[]+)"},
  };
  for (const auto& [from, to] : patterns) {
    const auto translated = translate_regex(from);
    ASSERT_TRUE(translated.ok()) << from << ": " << translated.status().to_string();
    EXPECT_EQ(translated.value(), to);
    EXPECT_TRUE(Regex::compile(from).ok()) << Regex::compile(from).status().to_string();
  }
}

TEST(Regex, RefusesUnsupportedConstructs) {
  const std::vector<std::pair<const char*, const char*>> patterns = {
      {R"(a\b)", R"(\b at offset 1)"},
      {R"((a)\1)", R"(\1 at offset 3)"},
      {R"(\h)", R"(\h at offset 0)"},
      {R"([\W])", R"(\W inside a class at offset 1)"},
      {"[a&&b]", "&& inside a class at offset 2"},
      {"[[:alpha:]]", "a [ inside a class at offset 1"},
      {"a{,3}", "{,n} at offset 1"},
      {"a{1,3}+", "{n,m}+ at offset 5"},
      {"(?m:.)", "this kind of (?...) group at offset 0"},
      {"(*ACCEPT)", "(* at offset 0"},
      {"[a", "an unclosed [ at offset 2"},
      {"[]a]", "] first in a class at offset 1"},
      {"a\\", "a final backslash at offset 1"},
      {R"(\pL)", R"(\p without {...} at offset 0)"},
      {R"(\p{a-b})", R"(this \p{...} at offset 0)"},
      {R"(\xFF)", R"(\x above 7F at offset 0)"},
      {R"(\u12)", R"(this \u at offset 0)"},
      {R"(a\p{})", R"(\p{} at offset 1)"},
      {R"(\P{^})", R"(\p{} at offset 0)"},
      {R"(\p{L)", R"(\p without {...} at offset 0)"},
      {R"(ab\x{})", R"(this \x{...} at offset 2)"},
      {R"(\x{12)", R"(this \x{...} at offset 0)"},
      {R"(\x{1g})", R"(this \x{...} at offset 0)"},
      {R"(\x4)", R"(this \x at offset 0)"},
      {R"(\x80)", R"(\x above 7F at offset 0)"},
  };
  for (const auto& [pattern, what] : patterns) {
    const auto result = Regex::compile(pattern);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_EQ(result.status().message(),
              "regular expression: " + std::string(what) + " is not supported");
  }
  EXPECT_EQ(Regex::compile("a)").status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(Regex::compile(std::string((1U << 14U) + 1, 'a')).status().message(),
            "regular expression: longer than 16384 bytes");
  EXPECT_TRUE(Regex::compile(std::string(1U << 14U, 'a')).ok());
  EXPECT_FALSE(Regex::compile(R"(\p{Nonsense})").ok());
}

TEST(Regex, WhiteSpaceMatchesTheUnicodeProperty) {
  const auto regex = Regex::compile(R"(\s)");
  ASSERT_TRUE(regex.ok());
  Regex::Workspace workspace = regex.value().make_workspace();
  for (const char* yes : {"\u0085", "\u00A0", "\u3000", "\u2028", "\v"}) {
    EXPECT_TRUE(regex.value().find(yes, 0, workspace).value().has_value());
  }
  for (const char* no : {"\u180E", "\u200B", "\uFEFF", "\x1C", "\x1F"}) {
    EXPECT_FALSE(regex.value().find(no, 0, workspace).value().has_value());
  }
}

TEST(Regex, MatchLimitErrorNamesTheOffset) {
  const auto regex = Regex::compile("b(?:a|aa)+[cd]");
  ASSERT_TRUE(regex.ok());
  Regex::Workspace workspace = regex.value().make_workspace();
  const auto result = regex.value().find("xb" + std::string(2000, 'a'), 1, workspace);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(result.status().message(), "regular expression: match limit exceeded at byte 1");
  EXPECT_EQ(regex.value().find("baac", 0, workspace).value()->end, 4U) << "it still works";
}

// The first alternative gives back one blank at a time in search of a line break.
TEST(Regex, ALongRunOfBlanksStaysBelowTheLimit) {
  const auto regex = Regex::compile(R"(\s*[\r\n]+|\s+(?!\S)|\s+)");
  ASSERT_TRUE(regex.ok());
  Regex::Workspace workspace = regex.value().make_workspace();
  const std::string blanks(15'000'000, ' ');
  const auto result = regex.value().find(blanks, 0, workspace);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result.value()->end, blanks.size());
}

// The small stack of the JIT must not limit what can be matched.
TEST(Regex, DeepBacktrackingFallsBackToTheInterpreter) {
  const auto regex = Regex::compile("(?:ab|cd)+");
  ASSERT_TRUE(regex.ok());
  Regex::Workspace workspace = regex.value().make_workspace();
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += i % 2 == 0 ? "ab" : "cd";
  const auto result = regex.value().find(text, 0, workspace);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result.value()->end, text.size());
}

}  // namespace
}  // namespace tidemill::engines
