// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/tool_calls.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::test {
namespace {

using actors::openai::ToolCall;
using actors::openai::ToolCallReader;
using actors::openai::ToolPiece;

struct Read {
  std::string text;
  std::vector<ToolCall> calls;
};

// Reads a response whose pieces have at most `size` bytes.
Read read(const std::string& response, std::size_t size = 1000) {
  ToolCallReader reader({"add", "now", "a", "b", "f"});
  Read all;
  const auto add = [&](const ToolPiece& piece) {
    all.text += piece.text;
    all.calls.insert(all.calls.end(), piece.calls.begin(), piece.calls.end());
  };
  for (std::size_t i = 0; i < response.size(); i += size) {
    add(reader.push(response.substr(i, size)));
  }
  add(reader.finish());
  return all;
}

const std::string kCall = R"(<tool_call>
{"name": "add", "arguments": {"a": 1, "b": [2]}}
</tool_call>)";

TEST(ToolCallsTest, ReadsCallsInTags) {
  const Read one = read("Let me add.\n" + kCall);
  EXPECT_EQ(one.text, "Let me add.\n");
  EXPECT_EQ(one.calls, (std::vector<ToolCall>{{"add", R"({"a":1,"b":[2]})"}}));
  const Read two = read(kCall + "\n" + kCall);
  EXPECT_EQ(two.calls.size(), 2U);
  EXPECT_EQ(read(R"(<tool_call>{"name": "now"}</tool_call>)").calls,
            (std::vector<ToolCall>{{"now", "{}"}}));
  // The end tag may be missing at the end.
  EXPECT_EQ(read(R"(<tool_call>{"name": "now", "parameters": {"x": 1}})").calls,
            (std::vector<ToolCall>{{"now", R"({"x":1})"}}));
}

TEST(ToolCallsTest, ReadsPlainCalls) {
  EXPECT_EQ(read(R"( {"name": "add", "parameters": {"a": 1}} )").calls,
            (std::vector<ToolCall>{{"add", R"({"a":1})"}}));
  EXPECT_EQ(read(R"([{"name": "a"}, {"name": "b", "arguments": {}}])").calls,
            (std::vector<ToolCall>{{"a", "{}"}, {"b", "{}"}}));
}

TEST(ToolCallsTest, LeavesOtherTextAsItIs) {
  for (const std::string& text : {
           std::string(),
           std::string(" \n "),
           std::string("a < b and <tool"),
           std::string("{not json"),
           std::string(R"({"name": 1})"),
           std::string(R"({"name": "Bob", "age": 3})"),
           std::string(R"({"name": ""})"),
           std::string(R"({"name": "a", "arguments": "x"})"),
           std::string(R"([{"name": "a"}, 1])"),
           std::string("[]"),
           std::string("<tool_call>{broken</tool_call> and more"),
           std::string("<tool_call>[]</tool_call>"),
           std::string("<tool_call>"),
           std::string("</tool_call>"),
           std::string(R"(text {"name": "a"})"),
       }) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
      EXPECT_EQ(read(text, size).text, text);
      EXPECT_TRUE(read(text, size).calls.empty()) << text;
    }
  }
}

TEST(ToolCallsTest, HoldsBackOnlyWhatMayBeACall) {
  ToolCallReader reader({"add", "now", "a", "b", "f"});
  EXPECT_EQ(reader.push("Hi").text, "Hi");
  EXPECT_EQ(reader.push(" <").text, " ");
  EXPECT_EQ(reader.push("b").text, "<b");
  EXPECT_EQ(reader.push("<tool_call>{\"name\"").text, "");
  const ToolPiece piece = reader.push(": \"f\"}</tool_call>!");
  EXPECT_EQ(piece.calls.size(), 1U);
  EXPECT_EQ(piece.text, "!");
}

TEST(ToolCallsTest, DoesNotDependOnTheCut) {
  RandomStream random(5);
  const std::vector<std::string> parts = {
      kCall, "text", "<", "<tool_call>", "</tool_call>", " ", "{", R"({"name": "f"})", "\n"};
  for (int round = 0; round < 500; ++round) {
    std::string response;
    for (std::uint64_t i = 0; i < random.below(6); ++i) {
      response += parts[random.below(parts.size())];
    }
    const Read whole = read(response);
    for (std::size_t size = 1; size < 8; ++size) {
      const Read cut = read(response, size);
      ASSERT_EQ(cut.text, whole.text) << response;
      ASSERT_EQ(cut.calls, whole.calls) << response;
    }
  }
}

}  // namespace
}  // namespace tidemill::test
