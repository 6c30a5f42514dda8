// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/command_protocol.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/reward/line_splitter.hpp"

namespace tidemill::engines {
namespace {

RewardRequest request_with(std::string fields) {
  return {.id = {5},
          .prompt = "p",
          .response = "r\n",
          .reference_answer = "a",
          .fields = std::move(fields)};
}

TEST(EncodeRequest, KeysOfTheSampleReplaceThoseOfTheRow) {
  EXPECT_EQ(encode_request(7, request_with(R"({"id": "x", "level": 3, "prompt": []})")).value(),
            R"({"answer":"a","id":7,"level":3,"prompt":"p","response":"r\n"})"
            "\n");
  EXPECT_EQ(encode_request(7, request_with("")).value(),
            R"({"answer":"a","id":7,"prompt":"p","response":"r\n"})"
            "\n");
}

TEST(EncodeRequest, ReplacesBytesThatAreNotUtf8) {
  RewardRequest broken = request_with("");
  broken.response = "a\xFF";
  EXPECT_EQ(encode_request(1, broken).value(),
            "{\"answer\":\"a\",\"id\":1,\"prompt\":\"p\",\"response\":\"a\xEF\xBF\xBD\"}\n");
}

TEST(EncodeRequest, RefusesRowsThatAreNotShallowObjects) {
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  for (const std::string& fields : {std::string("[1]"), std::string("{"), std::string("3"), deep}) {
    EXPECT_FALSE(encode_request(1, request_with(fields)).ok()) << fields.substr(0, 20);
  }
}

struct ReplyCase {
  std::string line;
  CommandReply::Kind kind;
  std::uint64_t id;
};

TEST(ParseReply, DistinguishesRepliesFromGarbage) {
  using Kind = CommandReply::Kind;
  const std::vector<ReplyCase> cases = {
      {R"({"id": 3, "reward": 0.5})", Kind::kReward, 3},
      {R"({"reward": -1, "id": 3, "note": "x"})", Kind::kReward, 3},
      {R"({"id": 3, "error": "no"})", Kind::kError, 3},
      {R"({"id": 3, "error": {"code": 4}, "reward": 1})", Kind::kError, 3},
      {R"({"id": 3, "error": null, "reward": 1})", Kind::kReward, 3},
      {R"({"id": 3})", Kind::kBad, 3},
      {R"({"id": 3, "reward": "1"})", Kind::kBad, 3},
      {R"({"id": 3, "reward": null})", Kind::kBad, 3},
      {R"({"id": 3, "reward": true})", Kind::kBad, 3},
      {R"({"id": 3, "reward": NaN})", Kind::kBad, 3},
      {R"({"reward": -Infinity, "id" : 3})", Kind::kBad, 3},
      {R"({"id": 3, "reward": 1e999})", Kind::kBad, 3},
      {R"({"id": 3, "reward": )", Kind::kBad, 3},
      {R"({"id": 3.0, "reward": 1})", Kind::kReward, 3},
      {R"({"id": 1.6e1, "reward": 1})", Kind::kReward, 16},
      {R"({"id": 16E-1, "reward": 1})", Kind::kGarbage, 0},
      // Not JSON, because of the reward.
      {R"({"id": 16.0, "reward": NaN})", Kind::kBad, 16},
      {R"({"id": 1.6e1, "reward": NaN})", Kind::kBad, 16},
      {R"({"id": 160E-1,"reward": NaN})", Kind::kBad, 16},
      {R"({"id": 9007199254740993, "reward": NaN})", Kind::kBad, 9007199254740993},
      {R"({"id": 1.6, "reward": NaN})", Kind::kGarbage, 0},
      {R"({"id": -16.0, "reward": NaN})", Kind::kGarbage, 0},
      {R"({"id": 1e300, "reward": NaN})", Kind::kGarbage, 0},
      {R"({"id": 1e999, "reward": NaN})", Kind::kGarbage, 0},
      {R"({"id": 16e, "reward": NaN})", Kind::kGarbage, 0},
      {"", Kind::kGarbage, 0},
      {"hello", Kind::kGarbage, 0},
      {"null", Kind::kGarbage, 0},
      {"3", Kind::kGarbage, 0},
      {R"([{"id": 3, "reward": 1}])", Kind::kGarbage, 0},
      {R"({"id": -3, "reward": 1})", Kind::kGarbage, 0},
      {R"({"id": "3", "reward": 1})", Kind::kGarbage, 0},
      {R"({"id": 3.5, "reward": 1})", Kind::kGarbage, 0},
      {R"({"id": -3.0, "reward": 1})", Kind::kGarbage, 0},
      {R"({"id": 1e300, "reward": 1})", Kind::kGarbage, 0},
      {R"({"reward": 1})", Kind::kGarbage, 0},
      {R"("id")", Kind::kGarbage, 0},
      {R"({"id")", Kind::kGarbage, 0},
      {R"({"id":)", Kind::kGarbage, 0},
      {R"({"id": x)", Kind::kGarbage, 0},
      {std::string(100'000, '['), Kind::kGarbage, 0},
      {"\xFF\xFE", Kind::kGarbage, 0},
  };
  for (const ReplyCase& c : cases) {
    const CommandReply reply = parse_reply(c.line);
    EXPECT_EQ(reply.kind, c.kind) << c.line.substr(0, 60);
    EXPECT_EQ(reply.id, c.id) << c.line.substr(0, 60);
  }
  EXPECT_EQ(parse_reply(cases[0].line).reward, 0.5);
  EXPECT_EQ(parse_reply(cases[2].line).text, "no");
  EXPECT_EQ(parse_reply(cases[3].line).text, R"({"code":4})");
  EXPECT_EQ(parse_reply(cases[9].line).text,
            R"(not JSON with a finite reward: {"id": 3, "reward": NaN})");
  EXPECT_EQ(parse_reply(R"({"id": 3, "reward": -1e30})").reward, -1e30);
  const CommandReply beyond = parse_reply(R"({"id": 3, "reward": -1e31})");
  EXPECT_EQ(beyond.kind, Kind::kBad);
  EXPECT_EQ(beyond.text, R"(the reward is beyond 1e30: {"id": 3, "reward": -1e31})");
}

TEST(Printable, IsOneShortLine) {
  EXPECT_EQ(printable("a\nb\x1B[31m\x7F"), "a?b?[31m?");
  EXPECT_EQ(printable(std::string(300, 'x')), std::string(200, 'x') + "...");
  std::string accents;
  for (int i = 0; i < 150; ++i) {
    accents += "\xE2\x82\xAC";
  }
  EXPECT_EQ(printable(accents), accents.substr(0, 198) + "...");
}

TEST(LineSplitter, LinesDoNotDependOnTheChunkSize) {
  const std::string text = "one\n\ntwo\n" + std::string(20, 'x') + "\nthree\nrest";
  for (std::size_t chunk = 1; chunk <= text.size(); ++chunk) {
    LineSplitter splitter(10);
    std::vector<std::string> lines;
    int overlong = 0;
    for (std::size_t at = 0; at < text.size(); at += chunk) {
      splitter.feed(
          std::string_view(text).substr(at, chunk),
          [&lines](std::string_view line) { lines.emplace_back(line); },
          [&overlong] { ++overlong; });
    }
    EXPECT_EQ(lines, (std::vector<std::string>{"one", "", "two", "three"})) << chunk;
    EXPECT_EQ(overlong, 1) << chunk;
  }
}

}  // namespace
}  // namespace tidemill::engines
