// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/row_parser.hpp"

#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::storage {
namespace {

TEST(ParsePromptRow, ReadsPromptsAndMessages) {
  const std::string text = R"({"level": 1.50, "answer": "4", "prompt": "2+2"})";
  const PromptRow row = parse_prompt_row(text).value();
  EXPECT_EQ(row.prompt, "2+2");
  EXPECT_EQ(row.messages, "");
  EXPECT_EQ(row.reference_answer, "4");
  EXPECT_EQ(row.fields, text) << "exactly as in the file";

  const PromptRow chat =
      parse_prompt_row(R"({"messages": [{"role": "user", "content": "z", "b": 1, "a": 2}]})")
          .value();
  EXPECT_EQ(chat.prompt, "");
  EXPECT_EQ(chat.messages, R"([{"role":"user","content":"z","b":1,"a":2}])");
  EXPECT_EQ(chat.reference_answer, "");
  EXPECT_EQ(parse_prompt_row(R"({"prompt": "p", "answer": -7})").value().reference_answer, "-7");
  EXPECT_EQ(parse_prompt_row(R"({"prompt": "p", "messages": null})").value().prompt, "p");
}

TEST(ParsePromptRow, AcceptsLargeNumbersWhereNoTemplateReadsThem) {
  const auto row = parse_prompt_row(
      R"({"id": 18446744073709551615, "messages": [{"role": "user", "n": -9223372036854775808,
          "content": "9223372036854775808", "x": 1e300, "y": 9223372036854775808.0}]})");
  EXPECT_TRUE(row.ok()) << row.status().message();
}

TEST(ParseSupervisedRow, ReadsAllThreeForms) {
  using Kind = SupervisedRow::Kind;
  const SupervisedRow pair = parse_supervised_row(R"({"prompt": "p", "answer": "a"})").value();
  EXPECT_EQ(pair.kind, Kind::kPromptAnswer);
  EXPECT_EQ(pair.prompt, "p");
  EXPECT_EQ(pair.reference_answer, "a");
  const SupervisedRow chat =
      parse_supervised_row(R"({"messages": [{"role": "assistant", "content": null}]})").value();
  EXPECT_EQ(chat.kind, Kind::kMessages);
  EXPECT_EQ(chat.messages, R"([{"role":"assistant","content":null}])");
  const SupervisedRow tokens =
      parse_supervised_row(R"({"input_ids": [5, 0, 2147483647], "loss_mask": [0, true, 1]})")
          .value();
  EXPECT_EQ(tokens.kind, Kind::kTokens);
  EXPECT_EQ(tokens.input_ids, (std::vector<std::int32_t>{5, 0, 2147483647}));
  EXPECT_EQ(tokens.loss_mask, (std::vector<std::uint8_t>{0, 1, 1}));
}

struct BadRow {
  std::string text;
  std::string message;
};

std::string nested(int levels) {
  return R"({"prompt": "p", "x": )" + std::string(levels, '[') + std::string(levels, ']') + "}";
}

TEST(ParsePromptRow, RefusesWhatItCannotUse) {
  std::string many = R"({"prompt": "p", "x": [0)";
  for (int i = 0; i < 4'000'000; ++i) {
    many += ",0";
  }
  many += "]}";
  const std::vector<BadRow> cases = {
      {"{", "not JSON at byte 2"},
      {R"({"prompt": "p"} x)", "not JSON at byte 17"},
      {R"({"prompt": "p",})", "not JSON at byte 16"},
      {R"({'prompt': 'p'})", "not JSON at byte 2"},
      {R"({"prompt": NaN})", "not JSON at byte 12"},
      {"{\"prompt\": \"\xFF\"}", "not JSON at byte 13"},
      {R"({"prompt": "\ud800"})", "not JSON at byte 19"},
      {std::string("{\"prompt\": \"a\0\"}", 16), "not JSON at byte 14"},
      {R"({"prompt": "p", "x": 1e999})", "not JSON at byte 26: a number is out of range"},
      {"[1]", "not a JSON object"},
      {"3", "not a JSON object"},
      {"{}", "has neither prompt nor messages"},
      {R"({"prompt": "p", "messages": []})", "has both prompt and messages"},
      {R"({"prompt": 3})", "prompt: must be a string"},
      {R"({"prompt": ""})", "prompt: is empty"},
      {R"({"prompt": "p", "answer": 1.5})", "answer: must be a string or an integer"},
      {R"({"prompt": "p", "answer": ["a"]})", "answer: must be a string or an integer"},
      {R"({"messages": []})", "messages: must be an array that is not empty"},
      {R"({"messages": "hi"})", "messages: must be an array that is not empty"},
      {R"({"messages": [3]})", "messages[0]: must be an object"},
      {R"({"messages": [{"content": "x"}]})",
       "messages[0].role: must be a string that is not empty"},
      {R"({"messages": [{"role": "user"}, {"role": 3}]})",
       "messages[1].role: must be a string that is not empty"},
      {R"({"messages": [{"role": "user", "content": 3}]})",
       "messages[0].content: must be a string, an array of parts, or null"},
      {R"({"messages": [{"role": "user", "n": 9223372036854775808}]})",
       "messages: integer 9223372036854775808 does not fit 64 bits"},
      {R"({"messages": [{"role": "user", "n": [-9223372036854775809]}]})",
       "messages: integer -9223372036854775809 does not fit 64 bits"},
      {R"({"messages": [{"role": "user", "n": 123456789012345678901234567890}]})",
       "messages: integer 123456789012345678901234567890 does not fit 64 bits"},
      {nested(64), "JSON nested deeper than 64"},
      {nested(1'000'000), "JSON nested deeper than 64"},
      {many, "more than 4000000 JSON values"},
  };
  for (const BadRow& c : cases) {
    EXPECT_EQ(parse_prompt_row(c.text).status().message(), c.message) << c.text.substr(0, 60);
  }
  EXPECT_TRUE(parse_prompt_row(nested(63)).ok());
  std::cout << "prompt rows refused: " << cases.size() << "\n";
}

TEST(ParseSupervisedRow, RefusesWhatItCannotUse) {
  const std::vector<BadRow> cases = {
      {"{}", "has none of prompt, messages and input_ids"},
      {R"({"prompt": "p", "input_ids": [1]})",
       "has more than one of prompt, messages and input_ids"},
      {R"({"prompt": "p"})", "answer: is missing or empty, so there is nothing to learn"},
      {R"({"prompt": "p", "answer": ""})",
       "answer: is missing or empty, so there is nothing to learn"},
      {R"({"messages": [{"role": "user", "content": "x"}]})",
       "messages: none is from the assistant, so there is nothing to learn"},
      {R"({"input_ids": [], "loss_mask": []})", "input_ids: must be an array that is not empty"},
      {R"({"input_ids": [1]})", "loss_mask: must be an array"},
      {R"({"input_ids": [1, 2], "loss_mask": [1]})",
       "loss_mask: has 1 entries, but input_ids has 2"},
      {R"({"input_ids": [1, -2], "loss_mask": [1, 1]})",
       "input_ids[1]: must be an integer from 0 to 2147483647"},
      {R"({"input_ids": [2147483648], "loss_mask": [1]})",
       "input_ids[0]: must be an integer from 0 to 2147483647"},
      {R"({"input_ids": [1.0], "loss_mask": [1]})",
       "input_ids[0]: must be an integer from 0 to 2147483647"},
      {R"({"input_ids": [1], "loss_mask": [2]})", "loss_mask[0]: must be 0 or 1"},
      {R"({"input_ids": [1], "loss_mask": ["1"]})", "loss_mask[0]: must be 0 or 1"},
  };
  for (const BadRow& c : cases) {
    EXPECT_EQ(parse_supervised_row(c.text).status().message(), c.message) << c.text;
  }
  std::cout << "supervised rows refused: " << cases.size() << "\n";
}

}  // namespace
}  // namespace tidemill::storage
