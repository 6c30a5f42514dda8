// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/stop_matcher.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

StopMatcher matcher(std::vector<std::string> stops) {
  return StopMatcher::create(std::move(stops)).value();
}

TEST(StopMatcher, FindsAStopStringWhereverTheTextIsSplit) {
  const std::string text = "one <|end|> two";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    StopMatcher stops = matcher({"<|end|>"});
    std::optional<StopMatch> match = stops.feed(std::string_view(text).substr(0, cut));
    EXPECT_EQ(match.has_value(), cut >= 11) << cut;
    match = stops.feed(std::string_view(text).substr(cut));
    EXPECT_EQ(match, (StopMatch{0, 4})) << cut;
  }
}

TEST(StopMatcher, ReturnsTheFirstCompletedStopStringAndTheLongerOfTwo) {
  EXPECT_EQ(matcher({"long one", "g"}).feed("a long one"), (StopMatch{1, 5}));
  EXPECT_EQ(matcher({"end", "the end"}).feed("the end"), (StopMatch{1, 0}));
  EXPECT_EQ(matcher({"the end", "end"}).feed("the end"), (StopMatch{0, 0}));
}

TEST(StopMatcher, FindsAStopStringAfterAnOverlappingPartialMatch) {
  StopMatcher stops = matcher({"aab"});
  EXPECT_FALSE(stops.feed("a").has_value());
  EXPECT_FALSE(stops.feed("a").has_value());
  EXPECT_FALSE(stops.feed("a").has_value());
  EXPECT_EQ(stops.feed("b"), (StopMatch{0, 1}));
}

TEST(StopMatcher, IgnoresTextAfterTheMatch) {
  StopMatcher stops = matcher({"b", "c"});
  EXPECT_EQ(stops.feed("ab"), (StopMatch{0, 1}));
  EXPECT_EQ(stops.feed("c"), (StopMatch{0, 1}));
  EXPECT_EQ(stops.kept_bytes(), 0U);
}

TEST(StopMatcher, KeepsFewerBytesThanTheLongestStopString) {
  StopMatcher stops = matcher({"xy", "0123456789"});
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(stops.feed("some text without end ").has_value());
    ASSERT_LE(stops.kept_bytes(), 9U);
  }
}

TEST(StopMatcher, AgreesWithASearchOfTheWholeText) {
  RandomStream random(8);
  int matches = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto word = [&](std::uint64_t longest) {
      std::string letters(1 + random.below(longest), 'a');
      for (char& letter : letters) {
        letter = static_cast<char>('a' + random.below(2));
      }
      return letters;
    };
    const std::vector<std::string> words = {word(6), word(6), word(6)};
    const std::string text = word(40);
    std::size_t want_end = std::string::npos;
    for (const std::string& stop : words) {
      const std::size_t begin = text.find(stop);
      want_end = begin == std::string::npos ? want_end : std::min(want_end, begin + stop.size());
    }
    StopMatcher stops = matcher(words);
    std::optional<StopMatch> match;
    std::size_t fed = 0;
    while (fed < text.size() && !match) {
      const std::size_t piece = std::min<std::size_t>(1 + random.below(5), text.size() - fed);
      match = stops.feed(std::string_view(text).substr(fed, piece));
      fed += piece;
    }
    ASSERT_EQ(match.has_value(), want_end != std::string::npos);
    if (match) {
      ++matches;
      const std::string& stop = words[match->stop_index];
      ASSERT_EQ(match->begin + stop.size(), want_end);
      ASSERT_EQ(text.substr(match->begin, stop.size()), stop);
    }
  }
  EXPECT_GT(matches, 1000);
}

TEST(StopMatcher, WithoutStopStringsNothingMatchesAndNothingIsKept) {
  StopMatcher stops = matcher({});
  EXPECT_FALSE(stops.feed("text").has_value());
  EXPECT_EQ(stops.kept_bytes(), 0U);
}

TEST(StopMatcher, RefusesEmptyTooLongAndTooManyStopStrings) {
  EXPECT_EQ(StopMatcher::create({"a", ""}).status().message(),
            "stop string 1 must have 1 to 1024 bytes, not 0");
  EXPECT_FALSE(StopMatcher::create({std::string(1025, 'a')}).ok());
  EXPECT_EQ(StopMatcher::create(std::vector<std::string>(65, "a")).status().message(),
            "at most 64 stop strings, not 65");
}

}  // namespace
}  // namespace tidemill::engines
