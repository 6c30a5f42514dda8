// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/text_stream.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/actors/gateway/served_model.hpp"

namespace tidemill::test {
namespace {

using actors::openai::partial_suffix_length;
using actors::openai::TextStream;

// Returns the pieces of a text, one for each token and one for the end.
std::vector<std::string> pieces(std::string_view text, const std::vector<std::string>& stops) {
  TextStream stream(make_served_model()->tokenizer, stops, '=');
  std::vector<std::string> all;
  for (const std::int32_t id : byte_ids(text)) {
    all.push_back(stream.push(id));
  }
  all.push_back(stream.finish());
  return all;
}

using Pieces = std::vector<std::string>;

TEST(TextStreamTest, ReturnsTextAsItArrives) {
  EXPECT_EQ(pieces("abc", {}), (Pieces{"a", "b", "c", ""}));
  EXPECT_EQ(pieces("a\xC3\xA4", {}), (Pieces{"a", "", "\xC3\xA4", ""}));
  EXPECT_EQ(pieces("a\xC3", {}), (Pieces{"a", "", "\xEF\xBF\xBD"}));
}

TEST(TextStreamTest, HoldsBackWhatMayBecomeAStop) {
  EXPECT_EQ(pieces("a<en", {"<end>"}), (Pieces{"a", "", "", "", "<en"}));
  EXPECT_EQ(pieces("a<<b", {"<end>"}), (Pieces{"a", "", "<", "<b", ""}));
  EXPECT_EQ(pieces("a<end>b", {"<end>"}), (Pieces{"a", "", "", "", "", "", "", ""}));
  EXPECT_EQ(pieces("xaab", {"aab"}), (Pieces{"x", "", "", "", ""}));
  EXPECT_EQ(pieces("xaaab", {"aab"}), (Pieces{"x", "", "", "a", "", ""}));
}

TEST(TextStreamTest, FindsPartialStops) {
  EXPECT_EQ(partial_suffix_length("abc", {"cd", "bcd"}), 2U);
  EXPECT_EQ(partial_suffix_length("abc", {"abc"}), 0U);
  EXPECT_EQ(partial_suffix_length("", {"abc"}), 0U);
  EXPECT_EQ(partial_suffix_length("aaa", {"aaaa"}), 3U);
}

// The pieces together are the text before the first stop string that is complete.
TEST(TextStreamTest, AgreesWithASearchOfTheWholeText) {
  RandomStream random(1);
  for (int round = 0; round < 3000; ++round) {
    const auto letters = [&](std::size_t size) {
      std::string text;
      for (std::size_t i = 0; i < size; ++i) {
        text += static_cast<char>('a' + random.below(2));
      }
      return text;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < 1 + random.below(2); ++i) {
      stops.push_back(letters(1 + random.below(5)));
    }
    const std::string text = letters(random.below(20));
    // The stop that ends first counts, and of two that end at the same byte the longer one.
    std::size_t end = std::string::npos;
    std::size_t begin = text.size();
    for (const std::string& stop : stops) {
      const std::size_t found = text.find(stop);
      if (found != std::string::npos && (end == std::string::npos || found + stop.size() < end ||
                                         (found + stop.size() == end && found < begin))) {
        end = found + stop.size();
        begin = found;
      }
    }
    std::string joined;
    for (const std::string& piece : pieces(text, stops)) {
      joined += piece;
    }
    ASSERT_EQ(joined, text.substr(0, begin)) << text << " with " << ::testing::PrintToString(stops);
  }
}

}  // namespace
}  // namespace tidemill::test
