// SPDX-License-Identifier: Apache-2.0
// Tests `score` and `generate` with the golden models.
#include <cmath>
#include <iostream>
#include <limits>

#include <gmock/gmock.h>

#include "base/files/tensor_file.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/launcher/command_run.hpp"
#include "workflows/memory_plan.hpp"

namespace tidemill::launcher {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kGolden = TIDEMILL_TEST_DIR "/golden/engine/";
const std::vector<std::string> kModels{"llama-bf16-sharded", "llama-linear", "llama-tiny",
                                       "qwen2-sliding",      "qwen2-tiny",   "qwen2-yarn",
                                       "qwen3-tiny"};

struct Difference {
  double max_abs = 0.0;
  double sum_squares = 0.0;
  std::size_t count = 0;

  void add(double a, double b) {
    max_abs = std::max(max_abs, std::abs(a - b));
    sum_squares += (a - b) * (a - b);
    ++count;
  }
  [[nodiscard]] double rms() const { return std::sqrt(sum_squares / static_cast<double>(count)); }
};

// Compares the logits "0", "1", ... of `file` with those of a golden file.
Difference compare_logits(const std::string& file, const std::string& golden,
                          const std::string& prefix, std::size_t num_tensors) {
  Difference difference;
  const auto ours = read_tensor_file(file, TensorPlacement::kCopied);
  const auto theirs = read_tensor_file(golden, TensorPlacement::kCopied);
  EXPECT_TRUE(ours.ok()) << ours.status().message();
  EXPECT_TRUE(theirs.ok()) << theirs.status().message();
  if (!ours.ok() || !theirs.ok()) {
    return difference;
  }
  EXPECT_EQ(ours.value().tensors.size(), num_tensors);
  for (const auto& [name, tensor] : ours.value().tensors) {
    const auto found = theirs.value().tensors.find(prefix + name);
    if (found == theirs.value().tensors.end()) {
      ADD_FAILURE() << name;
      continue;
    }
    EXPECT_EQ(tensor.dtype, DType::kF32);
    EXPECT_EQ(tensor.shape, found->second.shape) << name;
    const auto a = tensor.data.as<float>();
    const auto b = found->second.data.as<float>();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      difference.add(a[i], b[i]);
    }
  }
  return difference;
}

std::vector<json> prompts_of(const json& golden) {
  std::vector<json> lines;
  for (const json& prompt : golden.at("prompts")) {
    lines.push_back({{"ids", prompt.is_object() ? prompt.at("ids") : prompt}});
  }
  return lines;
}

using ScoreTest = CommandTest;

TEST_F(ScoreTest, ComputesTheGoldenLogprobsAndLogits) {
  std::size_t num_prompts = 0;
  std::size_t num_logprobs = 0;
  double worst = 0.0;
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const json golden = read_json(kGolden + "forward/" + name + ".json");
    const std::vector<json> lines = prompts_of(golden);
    const Outcome outcome = run({"score", kGolden + "models/" + name, "--dtype", "f32", "--input",
                                 write_lines("in.jsonl", lines), "--logits",
                                 path(name + ".safetensors"), "--threads", "1"});
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
    const std::vector<json> results = outcome.lines();
    ASSERT_EQ(results.size(), lines.size());
    for (std::size_t i = 0; i < results.size(); ++i, ++num_prompts) {
      const json& expected = golden.at("prompts")[i].at("prompt_logprobs");
      const json& logprobs = results[i].at("logprobs");
      ASSERT_EQ(logprobs.size(), expected.size());
      EXPECT_TRUE(logprobs[0].is_null());
      for (std::size_t t = 1; t < logprobs.size(); ++t, ++num_logprobs) {
        const double gap = std::abs(logprobs[t].get<double>() - expected[t].get<double>());
        worst = std::max(worst, gap);
        EXPECT_LE(gap, 2e-4) << "prompt " << i << " token " << t;
      }
    }
    const Difference logits =
        compare_logits(path(name + ".safetensors"), kGolden + "forward/" + name + ".safetensors",
                       "logits.", lines.size());
    EXPECT_LE(logits.max_abs, 2e-4);
    EXPECT_LE(logits.rms(), 2e-5);
  }
  std::cout << "score f32: " << num_prompts << " prompts, " << num_logprobs
            << " log-probabilities, largest difference " << worst << "\n";
  EXPECT_EQ(num_prompts, 49U);
  EXPECT_EQ(num_logprobs, 7U * (0 + 1 + 6 + 32 + 119 + 20 + 35));
}

TEST_F(ScoreTest, AModelComputesInTheTypeOfItsFilesUnlessAskedOtherwise) {
  const std::string input = write_lines("in.jsonl", {{{"ids", {1, 2, 3, 4, 5}}}});
  const auto scored = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"score", kGolden + "models/" + model, "--input", input});
    return run(more).out;
  };
  EXPECT_EQ(scored("llama-bf16-sharded", {}), scored("llama-bf16-sharded", {"--dtype", "bf16"}));
  EXPECT_NE(scored("llama-bf16-sharded", {}), scored("llama-bf16-sharded", {"--dtype", "f32"}));
  EXPECT_EQ(scored("llama-tiny", {}), scored("llama-tiny", {"--dtype", "f32"}));
  EXPECT_NE(scored("llama-tiny", {}), scored("llama-tiny", {"--dtype", "bf16"}));
}

TEST_F(ScoreTest, LogitsInBf16HaveAtMostTwiceTheErrorOfTheReference) {
  std::size_t num_models = 0;
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const json golden = read_json(kGolden + "forward/" + name + ".json");
    const std::vector<json> lines = prompts_of(golden);
    const Outcome outcome =
        run({"score", kGolden + "models/" + name, "--dtype", "bf16", "--input",
             write_lines("in.jsonl", lines), "--logits", path(name + ".safetensors")});
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
    EXPECT_EQ(outcome.lines().size(), lines.size());
    const Difference logits =
        compare_logits(path(name + ".safetensors"), kGolden + "forward/" + name + ".safetensors",
                       "logits.", lines.size());
    const double reference = golden.at("stats").at("hf_bfloat16_vs_golden_rms");
    std::cout << "score bf16: " << name << " rms " << logits.rms() << ", reference " << reference
              << '\n';
    EXPECT_LE(logits.rms(), 2.0 * reference);
    ++num_models;
  }
  EXPECT_EQ(num_models, 7U);
}

TEST_F(ScoreTest, ScoresWithAdaptersOverTheBaseAndMergedIntoIt) {
  std::size_t num_adapters = 0;
  for (const std::string name :
       {"dora", "ia3", "lora-all-linear", "lora-bf16-base", "lora-bias-only", "lora-embedding",
        "lora-layers", "lora-lm-head-saved", "lora-patterns", "lora-qv", "lora-regex",
        "lora-rslora"}) {
    SCOPED_TRACE(name);
    const std::string adapter = kGolden + "adapters/" + name;
    const json golden = read_json(adapter + "/golden.json");
    const std::string model = kGolden + "models/" + golden.at("base_model").get<std::string>();
    const std::string input = write_lines("in.jsonl", prompts_of(golden));
    const Outcome adapted = run({"score", model, "--dtype", "f32", "--adapter", adapter, "--input",
                                 input, "--logits", path("adapted.safetensors")});
    ASSERT_EQ(adapted.code, kDone) << adapted.err;
    EXPECT_LE(
        compare_logits(path("adapted.safetensors"), adapter + "/golden.safetensors", "adapted.", 2)
            .max_abs,
        2e-4);

    const Outcome exported = run({"export", model, path(name), "--merge", "--adapter", adapter});
    ASSERT_EQ(exported.code, kDone) << exported.err;
    const Outcome merged = run({"score", path(name), "--dtype", "f32", "--input", input, "--logits",
                                path("merged.safetensors")});
    ASSERT_EQ(merged.code, kDone) << merged.err;
    const Difference logits =
        compare_logits(path("merged.safetensors"), adapter + "/golden.safetensors", "merged.", 2);
    // Rounding to bf16 may differ if a sum is close to a tie.
    if (name == std::string("lora-bf16-base")) {
      EXPECT_LE(logits.rms(), 5e-3);
    } else {
      EXPECT_LE(logits.max_abs, 2e-4);
    }
    ++num_adapters;
  }
  std::cout << "score: " << num_adapters << " adapters, over the base and merged\n";
  EXPECT_EQ(num_adapters, 12U);
}

TEST_F(ScoreTest, RefusesUnsupportedAdapters) {
  const std::string input = write_lines("in.jsonl", {{{"ids", {1, 2}}}});
  std::filesystem::create_directory(path("adapter"));
  write("adapter/adapter_config.json", R"({"peft_type": "LORA", "layer_replication": [[0, 2]]})");
  const Outcome outcome =
      run({"score", kGolden + "models/llama-tiny", "--adapter", path("adapter"), "--input", input});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            path("adapter") + "/adapter_config.json: layer_replication: not supported\n");
}

using GenerateTest = CommandTest;

TEST_F(GenerateTest, FollowsTheGoldenGreedyResponse) {
  std::size_t num_prompts = 0;
  std::size_t num_tokens = 0;
  std::size_t num_flips = 0;
  for (const std::string& name : kModels) {
    const json golden = read_json(kGolden + "forward/" + name + ".json");
    const std::vector<json> lines = prompts_of(golden);
    const Outcome outcome =
        run({"generate", kGolden + "models/" + name, "--dtype", "f32", "--greedy",
             "--max-new-tokens", "32", "--input", write_lines("in.jsonl", lines)});
    ASSERT_EQ(outcome.code, kDone) << outcome.err;
    const std::vector<json> responses = outcome.lines();
    ASSERT_EQ(responses.size(), lines.size());
    for (std::size_t i = 0; i < responses.size(); ++i, ++num_prompts) {
      SCOPED_TRACE(name + " prompt " + std::to_string(i));
      const json& greedy = golden.at("prompts")[i].at("greedy");
      const json& ids = responses[i].at("ids");
      const bool stops = !greedy.at("eos_stop_after").is_null();
      const std::size_t expected = stops ? greedy.at("eos_stop_after").get<std::size_t>() : 32;
      ASSERT_EQ(ids.size(), responses[i].at("logprobs").size());
      bool flipped = false;
      for (std::size_t t = 0; t < expected && !flipped; ++t) {
        ASSERT_LT(t, ids.size());
        flipped = ids[t] != greedy.at("ids")[t];
        if (flipped) {
          // The order of two such close logits may change.
          EXPECT_LT(greedy.at("margins")[t].get<double>(), 1e-3);
          ++num_flips;
          continue;
        }
        EXPECT_NEAR(responses[i].at("logprobs")[t].get<double>(),
                    greedy.at("logprobs")[t].get<double>(), 2e-4);
        ++num_tokens;
      }
      if (!flipped) {
        EXPECT_EQ(ids.size(), expected);
        EXPECT_EQ(responses[i].at("finish_reason"), stops ? "stop" : "length");
      }
    }
  }
  std::cout << "generate: " << num_prompts << " greedy prompts, " << num_tokens << " tokens equal, "
            << num_flips << " prompts ended early at a near tie\n";
  EXPECT_EQ(num_prompts, 49U);
  EXPECT_GT(num_tokens, 1400U);
}

TEST_F(GenerateTest, ScoreComputesTheSameBitsAsGenerate) {
  std::size_t num_tokens = 0;
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const std::string& name : kModels) {
      SCOPED_TRACE(name + ' ' + dtype);
      const std::string model = kGolden + "models/" + name;
      std::vector<json> lines = prompts_of(read_json(kGolden + "forward/" + name + ".json"));
      const Outcome generated =
          run({"generate", model, "--dtype", dtype, "--seed", "5", "--ignore-eos",
               "--max-new-tokens", "24", "--input", write_lines("in.jsonl", lines)});
      ASSERT_EQ(generated.code, kDone) << generated.err;
      const std::vector<json> responses = generated.lines();
      ASSERT_EQ(responses.size(), lines.size());
      std::vector<std::size_t> prompt_sizes;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        json& ids = lines[i].at("ids");
        prompt_sizes.push_back(ids.size());
        ids.insert(ids.end(), responses[i].at("ids").begin(), responses[i].at("ids").end());
      }
      const Outcome scored =
          run({"score", model, "--dtype", dtype, "--input", write_lines("scored.jsonl", lines)});
      ASSERT_EQ(scored.code, kDone) << scored.err;
      const std::vector<json> scores = scored.lines();
      ASSERT_EQ(scores.size(), lines.size());
      for (std::size_t i = 0; i < lines.size(); ++i) {
        const json& logprobs = responses[i].at("logprobs");
        ASSERT_EQ(logprobs.size(), 24U);
        for (std::size_t t = 0; t < logprobs.size(); ++t, ++num_tokens) {
          EXPECT_EQ(scores[i].at("logprobs").at(prompt_sizes[i] + t), logprobs[t]);
        }
      }
    }
  }
  std::cout << "generate and score: " << num_tokens << " log-probabilities of equal bits\n";
  EXPECT_EQ(num_tokens, 2U * 7U * 7U * 24U);
}

TEST_F(GenerateTest, TheTokensOfALineDoNotDependOnOtherLines) {
  const std::string model = kGolden + "models/qwen3-tiny";
  std::vector<json> lines = prompts_of(read_json(kGolden + "forward/qwen3-tiny.json"));
  const std::vector<std::string> command{
      "generate", model,  "--seed",  "9",    "--max-new-tokens", "20",  "--top-k", "50",
      "--top-p",  "0.95", "--min-p", "0.01", "--temperature",    "1.3", "--input"};
  const auto responses_to = [&](const std::vector<json>& input) {
    std::vector<std::string> arguments = command;
    arguments.push_back(write_lines("in.jsonl", input));
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    return outcome.lines();
  };
  const auto first = responses_to(lines);
  ASSERT_EQ(first.size(), 7U);
  const auto again = responses_to({lines[4], {{"prompt", "Hello"}}, lines[2]});
  ASSERT_EQ(again.size(), 3U);
  EXPECT_EQ(again[2], first[2]);
  const auto repeated = responses_to({lines[4], lines[4]});
  EXPECT_NE(repeated.at(0), repeated.at(1));
}

TEST_F(GenerateTest, RespondsToPromptsAndConversations) {
  const std::string model = kGolden + "models/llama-tiny";
  const json messages = json::array({{{"role", "user"}, {"content", "Hello"}}});
  const auto conversation = [&](bool adds_header) {
    return json{{"messages", messages},
                {"add_generation_prompt", adds_header},
                {"now", "2026-01-31T12:00:00"}};
  };
  const auto ids_of = [&](const json& line) {
    const std::string text = run({"template", model, "--input", write_lines("t.jsonl", {line})})
                                 .lines()
                                 .at(0)
                                 .at("text");
    return run({"tokenize", model, "--no-special", "--input",
                write_lines("k.jsonl", {{{"text", text}}})})
        .lines()
        .at(0)
        .at("ids");
  };
  const json prompt_ids = run({"tokenize", model, "Hello", "--json"}).lines().at(0).at("ids");
  const std::string input =
      write_lines("in.jsonl", {{{"messages", messages}, {"now", "2026-01-31T12:00:00"}},
                               {{"ids", ids_of(conversation(true))}},
                               {{"prompt", "Hello"}, {"answer", "unused"}},
                               {{"ids", prompt_ids}},
                               conversation(false),
                               {{"ids", ids_of(conversation(false))}}});
  const Outcome outcome =
      run({"generate", model, "--greedy", "--max-new-tokens", "8", "--input", input});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto responses = outcome.lines();
  ASSERT_EQ(responses.size(), 6U);
  EXPECT_EQ(responses[0], responses[1]);
  EXPECT_EQ(responses[2], responses[3]);
  EXPECT_EQ(responses[4], responses[5]) << "without the header of a response";
  EXPECT_NE(responses[4], responses[0]);

  // For a single prompt, the command prints the text of the response or one object.
  const std::string shown =
      run({"generate", model, "Hello", "--greedy", "--max-new-tokens", "8"}).out;
  EXPECT_EQ(shown, responses[2].at("text").get<std::string>() + "\n");
  EXPECT_EQ(run({"generate", model, "Hello", "--greedy", "--max-new-tokens", "8", "--json"})
                .lines()
                .at(0),
            responses[2]);
}

TEST_F(GenerateTest, TheEndTokensOfTheGenerationConfigReplaceThoseOfTheConfig) {
  const json golden = read_json(kGolden + "forward/llama-tiny.json");
  const json greedy = golden.at("prompts")[0].at("greedy").at("ids");
  const std::string model = path("model");
  std::filesystem::copy(kGolden + "models/llama-tiny", model);
  write("model/generation_config.json", json{{"eos_token_id", {2, greedy[3]}}}.dump());
  const std::string input = write_lines("in.jsonl", {prompts_of(golden)[0]});
  const Outcome outcome = run(
      {"generate", model, "--dtype", "f32", "--greedy", "--max-new-tokens", "8", "--input", input});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const json response = outcome.lines().at(0);
  EXPECT_EQ(response.at("ids"), json(std::vector<json>(greedy.begin(), greedy.begin() + 4)));
  EXPECT_EQ(response.at("finish_reason"), "stop");
}

TEST_F(GenerateTest, StopStringsEndAResponse) {
  const std::string model = kGolden + "models/qwen3-tiny";
  const std::vector<std::string> plain{"generate",         model, "Hello",        "--greedy",
                                       "--max-new-tokens", "16",  "--ignore-eos", "--json"};
  const json whole = run(plain).lines().at(0);
  const std::string text = whole.at("text");
  ASSERT_GE(text.size(), 4U);
  // Stops at a printable ASCII character of the response.
  const auto at = std::find_if(text.begin() + 1, text.end(), [](char c) { return c > ' '; });
  ASSERT_NE(at, text.end());
  std::vector<std::string> stopped = plain;
  stopped.insert(stopped.end(), {"--stop", std::string(1, *at)});
  const json response = run(stopped).lines().at(0);
  EXPECT_EQ(response.at("finish_reason"), "stop");
  EXPECT_LE(response.at("ids").size(), whole.at("ids").size());
  EXPECT_THAT(response.at("text").get<std::string>(), HasSubstr(std::string(1, *at)));
}

TEST_F(GenerateTest, PromptsCanBecomeUserMessagesWithASystemMessage) {
  const json system{{"role", "system"}, {"content", "be brief"}};
  const json user{{"role", "user"}, {"content", "2 + 2"}};
  const std::string model = kGolden + "models/llama-tiny";
  const std::vector<std::string> more{"--greedy", "--max-new-tokens", "8", "--input"};
  const auto responses = [&](std::vector<std::string> command, const json& line) {
    command.insert(command.begin(), {"generate", model});
    command.insert(command.end(), more.begin(), more.end());
    command.push_back(write_lines("in.jsonl", {line}));
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    return outcome.out;
  };
  const std::string whole = responses({}, {{"messages", {system, user}}});
  EXPECT_EQ(responses({"--system", "be brief"}, {{"messages", {user}}}), whole);
  EXPECT_EQ(responses({"--system", "other"}, {{"messages", {system, user}}}), whole);
  const json parts{{{"type", "text"}, {"text", "2 +"}}, {{"type", "text"}, {"text", " 2"}}};
  EXPECT_EQ(responses({}, {{"messages", {system, {{"role", "user"}, {"content", parts}}}}}), whole);
  EXPECT_EQ(responses({"--chat", "--system", "be brief"}, {{"prompt", "2 + 2"}}), whole);
  const Outcome text = run({"generate", model, "--system", "be brief", "2 + 2"});
  EXPECT_EQ(text.code, kRefused);
  EXPECT_EQ(text.err,
            "PROMPT: prompt: --system needs a conversation; add --chat, or give messages\n");
}

TEST_F(ScoreTest, TextsAreScoredLikeTheirTokens) {
  const std::string model = kGolden + "models/llama-tiny";
  const json messages{{{"role", "user"}, {"content", "2 + 2"}},
                      {{"role", "assistant"}, {"content", "4"}}};
  const auto tokens = [&](const std::string& text, const std::vector<std::string>& flags) {
    std::vector<std::string> command{"tokenize", model, "--input",
                                     write_lines("in.jsonl", {{{"text", text}}})};
    command.insert(command.end(), flags.begin(), flags.end());
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    return outcome.lines().at(0).at("ids");
  };
  const Outcome rendered =
      run({"template", model, "--input", write_lines("in.jsonl", {{{"messages", messages}}})});
  ASSERT_EQ(rendered.code, kDone) << rendered.err;
  const std::string conversation = rendered.lines().at(0).at("text");
  const std::string as_text =
      write_lines("text.jsonl", {{{"messages", messages}}, {{"prompt", "2 + 2"}}});
  const Outcome scored = run({"score", model, "--input", as_text});
  ASSERT_EQ(scored.code, kDone) << scored.err;
  const std::string as_ids = write_lines(
      "ids.jsonl",
      {{{"ids", tokens(conversation, {"--no-special"})}}, {{"ids", tokens("2 + 2", {})}}});
  EXPECT_EQ(scored.out, run({"score", model, "--input", as_ids}).out);
}

TEST_F(GenerateTest, AResponseEndsAtTheEndOfTheContext) {
  std::vector<int> ids(510, 5);
  const std::string input = write_lines("in.jsonl", {{{"ids", ids}}});
  const Outcome outcome = run({"generate", kGolden + "models/llama-tiny", "--greedy",
                               "--ignore-eos", "--max-new-tokens", "9", "--input", input});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  EXPECT_EQ(outcome.lines().at(0).at("ids").size(), 2U);
  EXPECT_EQ(outcome.lines().at(0).at("finish_reason"), "length");
}

TEST_F(CommandTest, LinesThatTheModelCannotProcessAreNamed) {
  const std::string model = kGolden + "models/llama-tiny";
  struct Case {
    std::string command;
    std::string line;
    std::string message;
  };
  const std::string long_ids = json({{"ids", std::vector<int>(600, 5)}}).dump();
  const std::vector<Case> cases{
      {"score", "{\"ids\": []}", "in.jsonl:2: ids: at least one token is required"},
      {"score", "{}", "in.jsonl:2: ids: missing"},
      {"score", "{\"ids\": [1, 527]}",
       "in.jsonl:2: ids[1]: token 527 is outside the vocabulary of 527\n"},
      {"score", "{\"ids\": [1", "in.jsonl:2: "},
      {"score", long_ids, "in.jsonl:2: 600 prompt tokens and 0 new tokens exceed the context"},
      {"generate", "{\"ids\": [1, 2, 3000000]}",
       "in.jsonl:2: ids[2]: token 3000000 is outside the vocabulary of 527\n"},
      {"generate", "{}", "in.jsonl:2: needs exactly one of ids, prompt and messages"},
      {"generate", "{\"ids\": [1], \"prompt\": \"a\"}", "in.jsonl:2: needs exactly one of"},
      {"generate", "{\"ids\": []}", "in.jsonl:2: the prompt has no tokens"},
      {"generate", "{\"prompt\": 7}", "in.jsonl:2: prompt: must be a string"},
      {"generate", "{\"messages\": 7}", "in.jsonl:2: chat template: messages"},
      {"generate", long_ids, "in.jsonl:2: the prompt has 600 tokens, which leaves no room"},
  };
  for (const Case& item : cases) {
    SCOPED_TRACE(item.command + ' ' + item.line.substr(0, 40));
    const std::string input =
        write("in.jsonl", "{\"ids\": [1, 2]}\n" + item.line + "\n{\"ids\": [1, 2]}\n");
    const Outcome outcome = run({item.command, model, "--input", input});
    EXPECT_NE(outcome.code, kDone);
    EXPECT_THAT(outcome.err, HasSubstr(item.message));
    EXPECT_THAT(outcome.err, Not(HasSubstr("sample_id")));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.lines().size(), 1U) << outcome.out;
  }
}

TEST_F(CommandTest, ArgumentsThatCannotBeUsedAreNamed) {
  const std::string model = kGolden + "models/llama-tiny";
  const std::string input = write_lines("in.jsonl", {{{"ids", {1, 2}}}});
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"score", model, "--input", input, "--dtype", "f64"},
       "--dtype: must be f32, bf16, int8 or nf4, not \"f64\"\n"},
      {{"score", model, "--input", input, "--threads", "-1"},
       "--threads: must be an integer from 0 to 256, not \"-1\"\n"},
      {{"score", model, "--input", input, "--threads", "two"},
       "--threads: must be an integer from 0 to 256, not \"two\"\n"},
      {{"score", model, "--input", input, "--cache-mib", "0"},
       "--cache-mib: must be an integer from 1 to 1048576, not \"0\"\n"},
      {{"score", model, "--input", input, "--log-level", "loud"},
       "--log-level: must be one of debug, info, warning, error, not \"loud\"\n"},
      {{"generate", model}, "generate: needs PROMPT or --input FILE\n"},
      {{"generate", model, "x", "--max-new-tokens", "0"},
       "--max-new-tokens: must be an integer from 1 to 2147483647, not \"0\"\n"},
      {{"generate", model, "x", "--seed", "-1"},
       "--seed: must be an integer from 0 to 18446744073709551615, not \"-1\"\n"},
      {{"generate", model, "x", "--seed", "99999999999999999999999"},
       "--seed: must be an integer from 0 to 18446744073709551615, not "
       "\"99999999999999999999999\"\n"},
      {{"generate", model, "x", "--seed", "abc"},
       "--seed: must be an integer from 0 to 18446744073709551615, not \"abc\"\n"},
      {{"generate", model, "x", "--seed", "5x"}, "--seed: must be an integer"},
      {{"generate", path("none"), "x"},
       path("none") + ": no such folder or GGUF file; models are read from disk, not fetched by "
                      "name\n"},
      {{"score", path("none"), "--input", input}, path("none") + ": no such folder or GGUF file"},
      {{"generate", model, "x", "--temperature", "-1"},
       "--temperature: must be a number, at least 0, not \"-1\"\n"},
      {{"generate", model, "x", "--temperature", "nan"},
       "--temperature: must be a number, at least 0, not \"nan\"\n"},
      {{"generate", model, "x", "--temperature", "inf"}, "--temperature: must be a number"},
      {{"generate", model, "x", "--temperature", "1e-4"},
       "--temperature: must be 0 or at least 0.001\n"},
      {{"generate", model, "x", "--top-k", "-1"},
       "--top-k: must be an integer from 0 to 2147483647, not \"-1\"\n"},
      {{"generate", model, "x", "--top-p", "0"},
       "--top-p: must be a number, above 0 and at most 1, not \"0\"\n"},
      {{"generate", model, "x", "--min-p", "1.5"},
       "--min-p: must be a number, at least 0 and at most 1, not \"1.5\"\n"},
      {{"generate", model, "x", "--stop", ""}, "--stop: "},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kRefused) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(CommandTest, ARunInPlaceOfAModelIsReferredToItsExport) {
  const std::string run_directory = path("runs/a");
  std::filesystem::create_directories(run_directory);
  write("runs/a/run.yaml", "workflow: rl\n");
  EXPECT_EQ(run({"generate", run_directory, "x"}).err,
            run_directory +
                ": is a run, not a model; it has exported no weights; write them with: tidemill "
                "export " +
                run_directory + " DIR\n");
  std::filesystem::create_directories(run_directory + "/export/adapter");
  EXPECT_EQ(run({"generate", run_directory, "x"}).err,
            run_directory +
                ": is a run, not a model; give the model that it started from, with "
                "--adapter " +
                run_directory + "/export/adapter\n");
  write("runs/a/export/config.json", "{}");
  for (const char* command : {"generate", "tokenize"}) {
    const Outcome outcome = run({command, run_directory, "x"});
    EXPECT_EQ(outcome.code, kRefused);
    EXPECT_EQ(outcome.err, run_directory + ": is a run, not a model; its model is in " +
                               run_directory + "/export\n");
  }
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(path(""));
  EXPECT_EQ(run({"generate", "a", "x"}).err,
            "a: no such model; for the run of this name, its model is in runs/a/export\n");
  std::filesystem::current_path(before);
}

TEST_F(CommandTest, AnAdapterInPlaceOfAModelIsReferredToItsOption) {
  const std::string adapter = kGolden + "adapters/lora-qv";
  for (const char* command : {"generate", "tokenize"}) {
    const Outcome outcome = run({command, adapter, "x"});
    EXPECT_EQ(outcome.code, kRefused);
    EXPECT_EQ(outcome.err, adapter +
                               ": is an adapter, not a model; give the model that it was trained "
                               "over, with --adapter " +
                               adapter + "\n");
  }
}

TEST_F(CommandTest, ATensorWithNanIsNamed) {
  const std::filesystem::path model = path("m");
  std::filesystem::copy(kGolden + "models/llama-tiny", model);
  auto file = read_tensor_file(model / "model.safetensors", TensorPlacement::kCopied);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  Tensor& gain = file.value().tensors.at("model.norm.weight");
  std::vector<float> values(static_cast<std::size_t>(gain.num_elements()), 1.0F);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  gain = make_float_tensor(values, gain.shape, gain.dtype);
  PosixFileSystem files;
  ASSERT_TRUE(write_tensor_file(files, model / "model.safetensors", file.value().tensors).ok());
  const Outcome outcome = run({"generate", model.string(), "x"});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_EQ(outcome.err, (model / "model.safetensors").string() +
                             ": tensor \"model.norm.weight\": element [5] is NaN\n");
}

TEST_F(CommandTest, ACacheLargerThanTheMemoryIsRefused) {
  ASSERT_LT(workflows::allowed_memory({}), std::int64_t{1} << 40U)
      << "the test needs a larger value of --cache-mib";
  const Outcome outcome =
      run({"generate", kGolden + "models/llama-tiny", "x", "--cache-mib", "1048576"});
  EXPECT_EQ(outcome.code, kRefused);
  EXPECT_THAT(outcome.err, ::testing::MatchesRegex(
                               "--cache-mib: 1048576 MiB are more than the [0-9]+ MiB that this "
                               "process may use\n"));
}

TEST_F(GenerateTest, TheLargestSeedIsAccepted) {
  const std::string model = kGolden + "models/llama-tiny";
  const auto text_of = [&](const std::string& seed) {
    const Outcome outcome =
        run({"generate", model, "Hello", "--seed", seed, "--max-new-tokens", "12"});
    EXPECT_EQ(outcome.code, kDone) << outcome.err;
    return outcome.out;
  };
  EXPECT_NE(text_of("18446744073709551615"), text_of("9223372036854775807"));
}

TEST_F(CommandTest, AnErrorInWritingLogitsNamesTheGivenPath) {
  const std::string input = write_lines("in.jsonl", {{{"ids", {1, 2}}}});
  const std::string target = path("none/x.safetensors");
  const Outcome outcome =
      run({"score", kGolden + "models/llama-tiny", "--input", input, "--logits", target});
  EXPECT_NE(outcome.code, kDone);
  EXPECT_TRUE(outcome.err.starts_with(target + ": ")) << outcome.err;
  EXPECT_THAT(run({"score", "--help"}).out, HasSubstr("at most 8000 lines"));
}

}  // namespace
}  // namespace tidemill::launcher
