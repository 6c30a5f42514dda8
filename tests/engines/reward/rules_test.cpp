// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/rules.hpp"

#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/reward/factory.hpp"

namespace tidemill::engines {
namespace {

RewardRequest request(std::string response, std::string answer) {
  return {.id = {1},
          .prompt = "p",
          .response = std::move(response),
          .reference_answer = std::move(answer),
          .fields = "{}"};
}

struct NumberCase {
  const char* text;
  std::optional<double> expected;
};

// Half a mebibyte of digit groups, the last of which is incomplete. Scanning them again from each
// group would take minutes.
TEST(LastNumber, TakesLinearTimeForLongRowsOfGroups) {
  std::string groups = "1";
  while (groups.size() < (1U << 19U)) {
    groups += ",234";
  }
  EXPECT_EQ(last_number(groups + ",12"), 12.0);
  EXPECT_EQ(last_number(groups + ",12 7,654"), 7654.0);  // grouping works again after the failure
  EXPECT_EQ(last_number("1,234,56 1,234,567"), 1234567.0);
}

TEST(LastNumber, FollowsItsDefinition) {
  const std::vector<NumberCase> cases = {
      {"", std::nullopt},
      {"no number here", std::nullopt},
      {"-", std::nullopt},
      {".", std::nullopt},
      {"e5", 5.0},
      {"42", 42.0},
      {"The answer is 42.", 42.0},
      {"first 1 then 2", 2.0},
      {"-7", -7.0},
      {"+7", 7.0},
      {"= -4", -4.0},
      {"=-4", -4.0},
      {"3-4", 4.0},
      {"3 -4", -4.0},
      {"x-4", 4.0},
      {"(3)-4", 4.0},
      {"a[1]-4", 4.0},
      {"--4", -4.0},
      {"0-4", 4.0},
      {"9-4", 4.0},
      {"a-4", 4.0},
      {"z-4", 4.0},
      {"A-4", 4.0},
      {"Z-4", 4.0},
      {"/-4", -4.0},
      {":-4", -4.0},
      {"@-4", -4.0},
      {"(-4)", -4.0},
      {"[-4]", -4.0},
      {"`-4`", -4.0},
      {"{-4}", -4.0},
      {"4e5-3", 3.0},
      {"1e-2-3", 3.0},
      {"1e+x", 1.0},
      {"1e-", 1.0},
      {"1,234e1", 12340.0},
      {"-1,234.5e-1", -123.45},
      {"\xE2\x88\x92"
       "12",
       -12.0},
      {"7\xE2\x88\x92"
       "12",
       12.0},
      {"1,234", 1234.0},
      {"1,234,567.5", 1234567.5},
      {"-1,234", -1234.0},
      {"12,34", 34.0},
      {"1234,567", 567.0},
      {"1,2345", 2345.0},
      {"1,234,5678", 5678.0},
      {"1,2,3", 3.0},
      {"1,", 1.0},
      {"1, 234", 234.0},
      {"3.25", 3.25},
      {".5", 0.5},
      {"-.5", -0.5},
      {"5.", 5.0},
      {"1.2.3", 0.3},
      {"1e3", 1000.0},
      {"1E+3", 1000.0},
      {"25e-2", 0.25},
      {"1.5e3 ", 1500.0},
      {"2em", 2.0},
      {"2e+", 2.0},
      {"x2", 2.0},
      {"$5", 5.0},
      {"50%", 50.0},
      {"3/4", 4.0},
      {"0042", 42.0},
      {"-0", 0.0},
      {"\\boxed{17}", 17.0},
  };
  for (const NumberCase& c : cases) {
    EXPECT_EQ(last_number(c.text), c.expected) << "`" << c.text << "`";
  }
  EXPECT_TRUE(std::isnan(last_number("1e999").value()));
  EXPECT_EQ(last_number(std::string(1'000'000, '1') + " 8"), 8.0);
  std::cout << "last_number: " << cases.size() + 2 << " cases\n";
}

TEST(ExactMatch, ComparesTrimmedBytes) {
  const auto rule = make_exact_match_rule();
  EXPECT_EQ(rule->score(request(" \t\n42\r\v\f ", "42 ")).value(), 1.0);
  EXPECT_EQ(rule->score(request("42.", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("4 2", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("Paris", "paris")).value(), 0.0);
  EXPECT_EQ(rule->score(request("", "x")).value(), 0.0);
  EXPECT_EQ(rule->score(request("", " ")).status().message(),
            "the row has no reference answer (key `answer`)");
}

TEST(Number, ComparesLastNumbersWithinTheTolerance) {
  const auto rule = make_number_rule(0.5).value();
  EXPECT_EQ(rule->score(request("it is 41.5", "6 * 7 = 42")).value(), 1.0);
  EXPECT_EQ(rule->score(request("it is 41.4", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("forty-two", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("1e999", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("42", " \n")).status().message(),
            "the row has no reference answer (key `answer`)");
  EXPECT_EQ(rule->score(request("42", "forty-two")).status().message(),
            "the row's reference answer has no number");
  EXPECT_EQ(rule->score(request("it is 42.5", "42")).value(), 1.0) << "a bound counts";
  EXPECT_EQ(rule->score(request("it is 42.6", "42")).value(), 0.0);
  EXPECT_FALSE(rule->score(request("42", "1e999")).ok());
  const auto exact = make_number_rule(0.0).value();
  EXPECT_EQ(exact->score(request("1,000", "1000.0")).value(), 1.0);
  EXPECT_EQ(exact->score(request("1000.0001", "1000")).value(), 0.0);
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(make_number_rule(wrong).status().message(),
              "tolerance: must be a finite number, at least 0");
  }
}

TEST(Regex, AMatchScoresOne) {
  const auto rule = make_regex_rule("^<think>.*</think>\\s*\\S").value();
  EXPECT_EQ(rule->score(request("<think>a</think> b", "")).value(), 1.0);
  EXPECT_EQ(rule->score(request("b", "")).value(), 0.0);
}

TEST(Regex, AGroupNamedAnswerIsComparedWithTheReference) {
  const auto rule = make_regex_rule("answer:(?<answer>[^\\n]*)|no (?<other>answer)").value();
  EXPECT_EQ(rule->score(request("answer: 42 \nrest", "42")).value(), 1.0);
  EXPECT_EQ(rule->score(request("answer: 43", "42")).value(), 0.0);
  EXPECT_EQ(rule->score(request("answer: 43\nanswer: 42", "42")).value(), 0.0) << "the first match";
  EXPECT_EQ(rule->score(request("no answer", "answer")).value(), 0.0) << "the group is not set";
  EXPECT_EQ(rule->score(request("42", "42")).value(), 0.0);
  EXPECT_FALSE(rule->score(request("answer: ", "")).ok());
  const auto either = make_regex_rule("(?J)A(?<answer>.)|B(?<answer>.)").value();
  EXPECT_EQ(either->score(request("B7", "7")).value(), 1.0);
}

TEST(Regex, MatchesUnicodeAndToleratesInvalidUtf8) {
  const auto rule = make_regex_rule("^\\w+$").value();
  EXPECT_EQ(rule->score(request("\xC3\xA9t\xC3\xA9", "")).value(), 1.0);
  EXPECT_EQ(rule->score(request("a\xFFz", "")).value(), 0.0);
  const auto inside = make_regex_rule("z").value();
  EXPECT_EQ(inside->score(request("\xC3\xFFz", "")).value(), 1.0);
}

TEST(Regex, RefusesBadPatternsNamingTheOffset) {
  EXPECT_EQ(make_regex_rule("").status().message(), "pattern: is missing");
  EXPECT_EQ(make_regex_rule("a(b").status().message(),
            "pattern: offset 3: missing closing parenthesis");
  EXPECT_FALSE(make_regex_rule("\xFF").ok());
  EXPECT_FALSE(make_regex_rule(std::string(70'000, 'a')).ok());
}

TEST(Regex, APatternWithExponentialBacktrackingIsAnErrorNotAHang) {
  const auto rule = make_regex_rule("^(a+)+$").value();
  const Result<double> scored = rule->score(request(std::string(5000, 'a') + "b", ""));
  ASSERT_FALSE(scored.ok());
  EXPECT_EQ(scored.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(scored.status().message(), "the pattern cannot be matched: match limit exceeded");
}

}  // namespace
}  // namespace tidemill::engines
