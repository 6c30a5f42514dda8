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

TEST(ParsePromptRow, APromptMayBeAListOfMessages) {
  const PromptRow row =
      parse_prompt_row(R"({"prompt": [{"role": "user", "content": "2+2"}], "answer": "4"})")
          .value();
  EXPECT_EQ(row.prompt, "");
  EXPECT_EQ(row.messages, R"([{"role":"user","content":"2+2"}])");
  EXPECT_EQ(row.reference_answer, "4");
}

TEST(ParsePromptRow, KeepsARowOfSeveralLinesAsOneLine) {
  EXPECT_EQ(parse_prompt_row("{\n  \"prompt\": \"a\\nb\"\n}").value().fields,
            "{   \"prompt\": \"a\\nb\" }");
}

TEST(ParsePromptRow, AcceptsLargeNumbersWhereNoTemplateReadsThem) {
  const auto row = parse_prompt_row(
      R"({"id": 18446744073709551615, "messages": [{"role": "user", "n": -9223372036854775808,
          "content": "9223372036854775808", "x": 1e300, "y": 9223372036854775808.0}]})");
  EXPECT_TRUE(row.ok()) << row.status().message();
}

TEST(ParseSupervisedRow, TheMembersDecideTheKind) {
  using Kind = SupervisedRow::Kind;
  const SupervisedRow text = parse_supervised_row(R"({"text": "t", "id": 3})").value();
  EXPECT_EQ(text.kind, Kind::kText);
  EXPECT_EQ(text.text, "t");
  const SupervisedRow pair = parse_supervised_row(R"({"prompt": "p", "answer": "a"})").value();
  EXPECT_EQ(pair.kind, Kind::kPromptAnswer);
  EXPECT_EQ(pair.prompt, "p");
  EXPECT_EQ(pair.reference_answer, "a");
  const SupervisedRow continued =
      parse_supervised_row(R"({"completion": "c", "prompt": "p", "text": null})").value();
  EXPECT_EQ(continued.kind, Kind::kContinuedText);
  EXPECT_EQ(continued.prompt, "p");
  EXPECT_EQ(continued.continuation, "c");
  const SupervisedRow lists =
      parse_supervised_row(
          R"({"prompt": [{"role": "user"}], "completion": [{"role": "assistant", "b": 1}]})")
          .value();
  EXPECT_EQ(lists.kind, Kind::kContinuedChat);
  EXPECT_EQ(lists.messages, R"([{"role":"user"}])");
  EXPECT_EQ(lists.continuation, R"([{"role":"assistant","b":1}])");
  const SupervisedRow chat =
      parse_supervised_row(R"({"messages": [{"role": "assistant", "content": null}], "answer": 3})")
          .value();
  EXPECT_EQ(chat.kind, Kind::kMessages);
  EXPECT_EQ(chat.messages, R"([{"role":"assistant","content":null}])");
}

TEST(ParseSupervisedRow, MessagesMayHaveToolsAndWeights) {
  const std::string tools = R"([{"type":"function","function":{"name":"add"}}])";
  const SupervisedRow chat =
      parse_supervised_row(R"({"messages": [{"role": "assistant", "weight": 0},)"
                           R"( {"role": "assistant", "weight": 1}], "tools": )" +
                           tools + "}")
          .value();
  EXPECT_EQ(chat.tools, tools);
  EXPECT_EQ(chat.messages, R"([{"role":"assistant","weight":0},{"role":"assistant","weight":1}])");
  EXPECT_EQ(
      parse_supervised_row(R"({"messages": [{"role": "assistant"}], "tools": []})").value().tools,
      "");
  EXPECT_EQ(
      parse_supervised_row(
          R"({"prompt": [{"role": "user"}], "completion": [{"role": "assistant"}], "tools": )" +
          tools + "}")
          .value()
          .tools,
      tools);
  EXPECT_EQ(
      parse_prompt_row(R"({"messages": [{"role": "user"}], "tools": )" + tools + "}").value().tools,
      tools);
}

TEST(ParseSupervisedRow, TokensHaveAMaskOrLabelsOrNeither) {
  const auto read = [](const std::string& text) {
    SupervisedRow row = parse_supervised_row(text).value();
    EXPECT_EQ(row.kind, SupervisedRow::Kind::kTokens);
    EXPECT_EQ(row.input_ids, (std::vector<std::int32_t>{5, 0, 2147483647}));
    return row.loss_mask;
  };
  using Mask = std::vector<std::uint8_t>;
  EXPECT_EQ(read(R"({"input_ids": [5, 0, 2147483647], "loss_mask": [0, true, 1]})"),
            (Mask{0, 1, 1}));
  EXPECT_EQ(read(R"({"input_ids": [5, 0, 2147483647], "labels": [5, -100, 2147483647]})"),
            (Mask{0, 0, 1}));
  EXPECT_EQ(read(R"({"input_ids": [5, 0, 2147483647], "labels": [-100, 0, -100]})"),
            (Mask{0, 1, 0}));
  EXPECT_EQ(read(R"({"input_ids": [5, 0, 2147483647], "attention_mask": [1, 1, 1]})"),
            (Mask{0, 1, 1}));
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
      {"{", "not JSON at byte 2; expected JSON Lines, one object per line"},
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
      {"{}", "has no members; needs exactly one of: prompt | messages"},
      {R"({"question": "q", "answer": "a"})",
       "has question, answer; needs exactly one of: prompt | messages"},
      {R"({"prompt": "p", "messages": []})", "has both prompt and messages"},
      {R"({"prompt": 3})", "prompt: must be a string"},
      {R"({"prompt": []})", "prompt: must be an array that is not empty"},
      {R"({"prompt": ["p"]})", "prompt[0]: must be an object"},
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

TEST(ParseSupervisedRow, SaysThatPreferenceRowsAreNotSupported) {
  EXPECT_EQ(parse_supervised_row(R"({"input": {}, "preferred_output": []})").status().message(),
            "has preferred_output: preference rows are not supported");
  EXPECT_EQ(parse_supervised_row(R"({"prompt": "a", "chosen": "b"})").status().message(),
            "has chosen: preference rows are not supported");
}

TEST(ParseSupervisedRow, RefusesWhatItCannotUse) {
  const std::string kinds =
      "; needs exactly one of: text | prompt, answer | prompt, completion | messages | input_ids "
      "(labels or loss_mask are optional)";
  const std::vector<BadRow> cases = {
      {"{}", "has no members" + kinds},
      {R"({"text": null})", "has no members" + kinds},
      {R"({"prompt": "p"})", "has prompt" + kinds},
      {R"({"instruction": "Add.", "output": "2"})", "has instruction, output" + kinds},
      {R"({"prompt": "p", "input_ids": [1]})", "has prompt, input_ids" + kinds},
      {R"({"prompt": "p", "answer": "a", "completion": "c"})",
       "has prompt, answer, completion" + kinds},
      {R"({"id": 1, "text": "t", "messages": []})", "has id, text, messages" + kinds},
      {R"({"text": "t", "completion": "c"})", "has text, completion" + kinds},
      {R"({"input_ids": [1], "labels": [1], "loss_mask": [1]})",
       "has input_ids, labels, loss_mask" + kinds},
      {R"({"labels": [1]})", "has labels" + kinds},
      {R"({"a\nb": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1, "j": 1})",
       "has a?b, c, d, e, f, g, h, i, ..." + kinds},
      {R"({"text": ["t"]})", "text: must be a string"},
      {R"({"text": ""})", "text: is empty"},
      {R"({"prompt": ["p"], "answer": "a"})", "prompt: must be a string"},
      {R"({"prompt": "p", "answer": ""})", "answer: is empty, so there is nothing to learn"},
      {R"({"prompt": "p", "completion": ""})", "completion: is empty"},
      {R"({"prompt": "", "completion": "c"})", "prompt: is empty"},
      {R"({"prompt": "p", "completion": 3})", "completion: must be a string"},
      {R"({"prompt": "p", "completion": [{"role": "assistant"}]})",
       "prompt and completion: must be two strings or two arrays of messages"},
      {R"({"prompt": [{"role": "user"}], "completion": [{"role": "user"}]})",
       "completion: none is from the assistant, so there is nothing to learn"},
      {R"({"prompt": [{"rule": "user"}], "completion": [{"role": "assistant"}]})",
       "prompt[0].role: must be a string that is not empty"},
      {R"({"prompt": [{"role": "user"}], "completion": [3]})", "completion[0]: must be an object"},
      {R"({"messages": [{"role": "user", "content": "x"}]})",
       "messages: none is from the assistant, so there is nothing to learn"},
      {R"({"messages": [{"role": "user", "weight": 0}, {"role": "assistant"}]})",
       "messages[0].weight: only messages of the assistant may have one"},
      {R"({"messages": [{"role": "assistant", "weight": 0.5}]})",
       "messages[0].weight: must be 0 or 1"},
      {R"({"messages": [{"role": "assistant"}, {"role": "assistant", "weight": true}]})",
       "messages[1].weight: must be 0 or 1"},
      {R"({"messages": [{"role": "assistant", "weight": 2}]})",
       "messages[0].weight: must be 0 or 1"},
      {R"({"messages": [{"role": "assistant", "weight": 0}]})",
       "messages: every assistant message has weight 0, so the row has no target"},
      {R"({"prompt": [{"role": "user"}], "completion": [{"role": "assistant", "weight": 0}]})",
       "completion[0].weight: use the member messages"},
      {R"({"messages": [{"role": "assistant"}], "tools": "t"})", "tools: must be an array"},
      {R"({"messages": [{"role": "assistant"}], "tools": [{"type": "function"}]})",
       "tools[0]: must be a function with a name"},
      {R"({"messages": [{"role": "assistant"}], "functions": []})",
       "functions: is not supported; use tools"},
      {R"({"messages": [{"role": "assistant"}], "parallel_tool_calls": false})",
       "parallel_tool_calls: is not supported; remove it, because it does not change the "
       "training"},
      {R"({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]})",
       "messages[0].function_call: is not supported; use tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": "f"}]})",
       "messages[0].tool_calls: must be an array"},
      {R"({"input_ids": [], "loss_mask": []})", "input_ids: must be an array that is not empty"},
      {R"({"input_ids": 3})", "input_ids: must be an array that is not empty"},
      {R"({"input_ids": [1], "loss_mask": 1})", "loss_mask: must be an array"},
      {R"({"input_ids": [1], "labels": "1"})", "labels: must be an array"},
      {R"({"input_ids": [1, 2], "labels": [1, 2, 3]})",
       "labels: has 3 entries, but input_ids has 2"},
      {R"({"input_ids": [1, 2, 3], "labels": [-100, 3, -100]})",
       "labels[1]: must be -100 or input_ids[1], 2"},
      {R"({"input_ids": [1], "labels": [null]})", "labels[0]: must be -100 or input_ids[0], 1"},
      {R"({"input_ids": [1, 2], "target_mask": [0, 1]})",
       "target_mask: is not read; use loss_mask or labels"},
      {R"({"input_ids": [1, 2], "assistant_masks": [0, 1]})",
       "assistant_masks: is not read; use loss_mask or labels"},
      {R"({"input_ids": [1, 2], "attention_mask": [1, 0]})",
       "attention_mask: must be all 1; remove the padding"},
      {R"({"input_ids": [1, 2], "attention_mask": [1]})",
       "attention_mask: has 1 entries, but input_ids has 2"},
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
