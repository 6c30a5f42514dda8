// SPDX-License-Identifier: Apache-2.0
// Tests `tokenize` and `template` with the golden cases, and lines that commands cannot use.
#include <algorithm>
#include <array>
#include <iostream>
#include <unistd.h>

#include <gmock/gmock.h>

#include "launcher/models/line_reader.hpp"
#include "tests/launcher/command_run.hpp"

namespace tidemill::launcher {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kGoldenData = TIDEMILL_TEST_DIR "/golden/engine/";

class TokenizeTest : public CommandTest {
protected:
  // Runs the command on all inputs and compares the output lines with `expected`.
  void expect_output(std::vector<std::string> arguments, const std::vector<json>& inputs,
                     const std::vector<json>& expected) {
    arguments.insert(arguments.begin(), "tokenize");
    arguments.insert(arguments.end(), {"--input", write_lines("input.jsonl", inputs)});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    EXPECT_EQ(outcome.lines(), expected) << arguments[1];
  }
};

TEST_F(TokenizeTest, EncodesAndDecodesAllGoldenCases) {
  std::size_t num_encoded = 0;
  std::size_t num_decoded = 0;
  for (const std::string name :
       {"gpt2-style", "gpt2-prefix-space", "llama3-style", "qwen2-style"}) {
    const std::string model = kGoldenData + "tokenizers/" + name;
    std::vector<json> texts, plain, special, ids, kept, dropped;
    const json cases = read_json(model + "/cases.json");
    for (const json& item : cases.at("encode")) {
      texts.push_back({{"text", item.at("text")}});
      plain.push_back({{"ids", item.at("ids")}});
      special.push_back({{"ids", item.value("ids_special", item.at("ids"))}});
      ids.push_back({{"ids", item.at("ids")}});
      const json decoded = item.value("decoded", item.at("text"));
      kept.push_back({{"text", decoded}});
      dropped.push_back({{"text", item.value("decoded_skip", decoded)}});
    }
    const json decode = read_json(model + "/decode.json");
    for (const json& item : decode.at("decode")) {
      ids.push_back({{"ids", item.at("ids")}});
      kept.push_back({{"text", item.at("decoded")}});
      dropped.push_back({{"text", item.at("decoded_skip")}});
    }
    expect_output({model, "--no-special"}, texts, plain);
    expect_output({model}, texts, special);
    expect_output({model, "--decode"}, ids, kept);
    expect_output({model, "--decode", "--skip-special"}, ids, dropped);
    num_encoded += texts.size();
    num_decoded += ids.size();
  }
  std::cout << "tokenize: " << num_encoded << " texts with and without special tokens, "
            << num_decoded << " id lists with and without the text of special tokens\n";
  EXPECT_EQ(num_encoded, 1061U + 1014U + 1119U + 1131U);
  EXPECT_EQ(num_decoded, num_encoded + 4U * 120U);
}

TEST_F(TokenizeTest, ShowsTheIdsOfOneText) {
  const std::string model = kGoldenData + "models/llama-tiny";
  EXPECT_EQ(run({"tokenize", model, "Hi"}).out, "520 39 72\n");
  EXPECT_EQ(run({"tokenize", model, "Hi", "--json"}).out, "{\"ids\":[520,39,72]}\n");
  const Outcome nothing = run({"tokenize", model});
  EXPECT_EQ(nothing.code, kRefused);
  EXPECT_EQ(nothing.err, "tokenize: needs TEXT or --input FILE\n");
  EXPECT_EQ(run({"tokenize", model, "--decode"}).err, "--decode: needs --input FILE\n");
}

TEST_F(TokenizeTest, WarnsOfIdsWithoutAToken) {
  const std::string model = kGoldenData + "models/llama-tiny";
  const std::string input = write(
      "in.jsonl", "{\"ids\": [39, 72]}\n{\"ids\": [39, 5000, 72, 6000]}\n{\"ids\": [7000]}\n");
  const Outcome outcome = run({"tokenize", model, "--decode", "--input", input});
  EXPECT_EQ(outcome.code, kDone);
  EXPECT_EQ(outcome.out, "{\"text\":\"Hi\"}\n{\"text\":\"Hi\"}\n{\"text\":\"\"}\n");
  EXPECT_EQ(outcome.err,
            "warning: " + input +
                ":2: ids[1]: no token has the id 5000; the text leaves out 2 such ids\n"
                "warning: " +
                input + ":3: ids[0]: no token has the id 7000; the text leaves out 1 such id\n");
}

using TemplateTest = CommandTest;

TEST_F(TemplateTest, RendersAllGoldenCases) {
  const json cases = read_json(kGoldenData + "chat/cases.json");
  std::size_t num_cases = 0;
  std::size_t num_errors = 0;
  for (const std::string name : {"minimal", "beacon", "harbour", "reef", "kelp"}) {
    std::vector<json> inputs;
    std::vector<json> expected;
    // Parses the file again with ordered keys, since templates print mappings in the order of the
    // file.
    std::ifstream stream(kGoldenData + "chat/cases.json");
    std::string text;
    const auto ordered = nlohmann::ordered_json::parse(stream);
    for (const auto& item : ordered.at("cases")) {
      if (item.at("template") != name) {
        continue;
      }
      nlohmann::ordered_json line = item.at("flags");
      for (const char* key : {"messages", "tools", "now", "bos_token", "eos_token", "pad_token"}) {
        line[key] = item.at(key);
      }
      text += line.dump() + '\n';
      expected.push_back(json::parse(item.dump()));
    }
    const Outcome outcome =
        run({"template", kGoldenData + "chat/tokenizer", "--template",
             kGoldenData + "chat/" + name + ".jinja", "--input", write(name + ".jsonl", text)});
    const bool all_render = std::none_of(expected.begin(), expected.end(),
                                         [](const json& item) { return item.contains("error"); });
    EXPECT_EQ(outcome.code, all_render ? kDone : kFailed) << outcome.err;
    const std::vector<json> results = outcome.lines();
    ASSERT_EQ(results.size(), expected.size()) << name;
    for (std::size_t i = 0; i < results.size(); ++i, ++num_cases) {
      if (!expected[i].contains("error")) {
        EXPECT_EQ(results[i], json({{"text", expected[i].at("text")}})) << expected[i].at("id");
        continue;
      }
      ++num_errors;
      ASSERT_TRUE(results[i].contains("error")) << results[i];
      // Messages of raise_exception must match. For other failures, only their presence is checked.
      const std::string message = expected[i].at("error");
      const std::string raised = "TemplateError: ";
      if (message.starts_with(raised)) {
        EXPECT_EQ(results[i].at("error"), message.substr(raised.size()));
      }
    }
  }
  std::cout << "template: " << num_cases << " cases, " << num_errors << " of them failures\n";
  EXPECT_EQ(num_cases, 95U);
  EXPECT_EQ(num_errors, 7U);
}

TEST_F(TemplateTest, SpecialTokensAreVariablesUnlessTheLineSetsThem) {
  const std::string file = write("t.jinja", "{{ bos_token }}|{{ eos_token }}|{{ who }}");
  const std::string input =
      write("in.jsonl",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"who\": \"me\"}\n\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"eos_token\": \"E\"}\n");
  const Outcome outcome =
      run({"template", kGoldenData + "models/llama-tiny", "--template", file, "--input", input});
  EXPECT_EQ(outcome.out,
            "{\"text\":\"<|begin_of_text|>|<|eot_id|>|me\"}\n"
            "{\"text\":\"<|begin_of_text|>|E|\"}\n");
}

TEST_F(TemplateTest, AFailureToRenderIsAResultLine) {
  const std::string file = write(
      "t.jinja",
      "{% if messages[0].content == 'raise' %}{{ raise_exception('no such thing') }}{% endif %}\n"
      "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}"
      "x{% endfor %}{% endfor %}{% endif %}ok");
  std::vector<json> lines;
  for (const char* content : {"raise", "loop", "fine"}) {
    lines.push_back({{"messages", json::array({{{"role", "user"}, {"content", content}}})}});
  }
  lines.push_back({{"messages", 3}});
  const std::string model = kGoldenData + "models/llama-tiny";
  const std::string input = write_lines("in.jsonl", lines);
  const Outcome outcome = run({"template", model, "--template", file, "--input", input});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.err, input + ": 3 of 4 conversations could not be rendered\n");
  const auto results = outcome.lines();
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[3], json({{"error", "messages: must be a non-empty list of messages"}}));
  EXPECT_EQ(results[0], json({{"error", "no such thing"}, {"line", 1}}));
  EXPECT_EQ(results[1].at("line"), 2);
  EXPECT_EQ(results[2], json({{"text", "ok"}}));
}

TEST_F(TemplateTest, RefusesFilesThatItCannotUse) {
  const std::string input = write("in.jsonl", "");
  EXPECT_EQ(
      run({"template", "/nowhere", "--input", input}).err,
      "/nowhere: no such folder or GGUF file; models are read from disk, not fetched by name\n");
  const std::string model = kGoldenData + "tokenizers/gpt2-style";
  EXPECT_EQ(run({"template", model, "--input", input}).err, model + ": has no chat template\n");
  const std::string broken = write("broken.jinja", "a\n{% if %}");
  const Outcome outcome = run({"template", model, "--template", broken, "--input", input});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_THAT(outcome.err, HasSubstr(broken + ": line 2: "));
}

// The results of the lines before an invalid one are printed, and the message names the line.
TEST_F(CommandTest, AnInvalidLineIsNamed) {
  const std::string model = kGoldenData + "models/llama-tiny";
  struct Case {
    std::vector<std::string> arguments;
    std::string line;
    std::string message;
  };
  const std::vector<Case> cases{
      {{"tokenize"}, "{\"text\": \"a\"", "in.jsonl:3: "},
      {{"tokenize"}, "[1]", "in.jsonl:3: must be a JSON object"},
      {{"tokenize"}, "{\"txt\": \"a\"}", "in.jsonl:3: text: must be a string"},
      {{"tokenize"}, "{\"text\": 7}", "in.jsonl:3: text: must be a string"},
      {{"tokenize"}, "{\"text\": \"\xFF\"}", "in.jsonl:3: "},
      {{"tokenize", "--decode"}, "{\"text\": \"a\"}", "in.jsonl:3: ids: is required"},
      {{"tokenize", "--decode"}, "{\"ids\": 5}", "in.jsonl:3: ids: must be an array"},
      {{"tokenize", "--decode"}, "{\"ids\": [1, -1]}", "in.jsonl:3: ids[1]: must be an integer"},
      {{"tokenize", "--decode"}, "{\"ids\": [4294967296]}", "in.jsonl:3: ids[0]: must be"},
      {{"tokenize", "--decode"}, "{\"ids\": [1.5]}", "in.jsonl:3: ids[0]: must be an integer"},
      {{"template"}, "{\"messages\": [], \"now\": 5}", "in.jsonl:3: now"},
      {{"template"}, "{\"messages\"", "in.jsonl:3: not JSON at byte"},
  };
  for (const Case& item : cases) {
    const std::string good =
        item.arguments[0] == "template"
            ? R"({"messages": [{"role": "user", "content": "x"}], "now": "2026-01-31T12:00:00"})"
        : item.arguments.size() > 1 ? R"({"ids": [1]})"
                                    : R"({"text": "x"})";
    const std::string input = write("in.jsonl", good + "\n\n" + item.line + "\n" + good + "\n");
    std::vector<std::string> arguments = item.arguments;
    arguments.insert(arguments.end(), {model, "--input", input});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kRefused) << item.line;
    EXPECT_THAT(outcome.err, HasSubstr(item.message)) << item.line;
    EXPECT_EQ(outcome.lines().size(), 1U) << outcome.out;
  }
}

TEST_F(CommandTest, InputsThatCannotBeOpenedAreNamed) {
  const std::string model = kGoldenData + "models/llama-tiny";
  const Outcome missing = run({"tokenize", model, "--input", path("none.jsonl")});
  EXPECT_EQ(missing.code, kRefused);
  EXPECT_THAT(missing.err, HasSubstr(path("none.jsonl") + ": "));
  EXPECT_EQ(run({"tokenize", model, "--input", path("")}).err,
            path("") + ": is a directory, not a file of JSON lines\n");
  EXPECT_EQ(run({"tokenize", path(""), "x"}).code, kRefused);
}

TEST_F(CommandTest, LinesMayEndWithCrLfOrWithTheFile) {
  const std::string file = write("in.jsonl", "{}\r\n\n  \n{\"a\":1}");
  auto reader = LineReader::open(file);
  ASSERT_TRUE(reader.ok());
  LineReader& lines = *reader.value();
  EXPECT_TRUE(lines.ready());
  auto line = lines.next().value();
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->text, "{}\r");
  EXPECT_EQ(line->location, file + ":1");
  line = lines.next().value();
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->text, "{\"a\":1}");
  EXPECT_EQ(line->location, file + ":4");
  EXPECT_EQ(line->index, 1U);
  EXPECT_FALSE(lines.next().value().has_value());
  EXPECT_FALSE(lines.next().value().has_value());
}

TEST_F(CommandTest, APipeIsReadyOnceALineIsComplete) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const auto send = [&](const std::string& text) {
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  auto reader = LineReader::open("/dev/fd/" + std::to_string(ends[0]));
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  LineReader& lines = *reader.value();
  EXPECT_FALSE(lines.ready());
  send("{\"a\"");
  EXPECT_FALSE(lines.ready());
  send(":1}\n{");
  EXPECT_TRUE(lines.ready());
  EXPECT_EQ(lines.next().value()->text, "{\"a\":1}");
  EXPECT_FALSE(lines.ready());
  ::close(ends[1]);
  EXPECT_TRUE(lines.ready());
  EXPECT_EQ(lines.next().value()->text, "{");
  EXPECT_FALSE(lines.next().value().has_value());
  ::close(ends[0]);
}

TEST_F(CommandTest, ATooLongLineIsRefused) {
  const std::string file =
      write("in.jsonl", "{}\n" + std::string(LineReader::kMaxLineBytes + 1, ' '));
  auto reader = LineReader::open(file);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(reader.value()->next().ok());
  EXPECT_EQ(reader.value()->next().status().message(), file + ":2: longer than 64 MiB");
}

}  // namespace
}  // namespace tidemill::launcher
