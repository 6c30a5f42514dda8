// SPDX-License-Identifier: Apache-2.0
// Tests storage/run_files: the exact bytes of each file of a run, and what is read back.
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/file.hpp"
#include "storage/run_files/commit_meta.hpp"
#include "storage/run_files/lines.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/run_state.hpp"
#include "storage/run_files/sample_line.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using storage::CommitMeta;
using storage::MetricsLine;
using storage::SampleLine;
using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// -- metrics.jsonl --------------------------------------------------------------------------------

TEST(MetricsLines, HaveTheseBytes) {
  EXPECT_EQ(storage::write_metrics_line({"train", 12, {{"reward_mean", 0.1}, {"loss", -2.0}}}),
            "{\"kind\":\"train\",\"step\":12,\"loss\":-2.0,\"reward_mean\":0.1}\n");
  EXPECT_EQ(storage::write_metrics_line({"eval", 0, {{"gap", kNan}}}),
            "{\"kind\":\"eval\",\"step\":0,\"gap\":null}\n");
}

TEST(MetricsLines, AreReadBack) {
  const MetricsLine line{"eval", 7, {{"eval_loss", 1.0 / 3.0}, {"tokens", 1e300}}};
  const auto back = storage::parse_metrics_line(storage::write_metrics_line(line));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back.value(), line);
}

TEST(MetricsLines, MembersThatAreNoNumbersAreLeftOut) {
  const auto line = storage::parse_metrics_line(
      R"({"kind":"train","step":1,"gap":null,"note":"text","list":[1],"loss":2})");
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  EXPECT_EQ(line.value(), (MetricsLine{"train", 1, {{"loss", 2.0}}}));
}

TEST(MetricsLines, AnUnreadableLineIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[]", "must be a JSON object"},
      {R"({"step":1})", "kind: missing"},
      {R"({"kind":"train"})", "step: missing"},
      {R"({"kind":"train","step":-1})", "step: missing"},
      {R"({"kind":"train","st)", "not JSON at byte 20"}};
  for (const auto& [text, message] : cases) {
    const auto line = storage::parse_metrics_line(text);
    EXPECT_EQ(line.status().code(), Errc::kCorruptData) << text;
    EXPECT_EQ(line.status().message(), message) << text;
  }
}

// -- samples.jsonl --------------------------------------------------------------------------------

SampleLine whole_sample() {
  SampleLine line;
  line.step = 5;
  line.sample = 3;
  line.group = 1;
  line.prompt = "2+2=\n";
  line.response = "4\xC3\xA9";
  line.reference_answer = "4";
  line.reward = 1.0;
  line.rewards = {{"form", 0.25}, {"number", 1.0}};
  line.advantage = -0.1F;
  line.finish_reason = "stop";
  line.versions = {{3, 1}, {4, 1}};
  line.response_ids = {7, 8};
  line.behavior_logprobs = {-0.1F, -16777216.0F};
  return line;
}

TEST(SampleLines, HaveTheseBytes) {
  EXPECT_EQ(
      storage::write_sample_line(whole_sample()),
      "{\"step\":5,\"sample\":3,\"group\":1,\"prompt\":\"2+2=\\n\",\"response\":\"4\xC3\xA9\","
      "\"answer\":\"4\",\"reward\":1.0,\"rewards\":{\"form\":0.25,\"number\":1.0},"
      "\"advantage\":-0.1,\"finish_reason\":\"stop\",\"versions\":[{\"step\":3,\"tokens\":1},"
      "{\"step\":4,\"tokens\":1}],\"response_ids\":[7,8],"
      "\"behavior_logprobs\":[-0.1,-16777216.0]}\n");
  EXPECT_EQ(
      storage::write_sample_line({}),
      "{\"step\":0,\"sample\":0,\"group\":0,\"prompt\":\"\",\"response\":\"\",\"answer\":\"\","
      "\"reward\":0.0,\"advantage\":0.0,\"finish_reason\":\"\",\"versions\":[],"
      "\"response_ids\":[],\"behavior_logprobs\":[]}\n");
}

TEST(SampleLines, AreReadBack) {
  for (const SampleLine& line : {whole_sample(), SampleLine{}}) {
    const auto back = storage::parse_sample_line(storage::write_sample_line(line));
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(back.value(), line);
  }
}

// Reading a log-probability back gives the same float, although it is written with few digits.
TEST(SampleLines, LogProbabilitiesAreExact) {
  SampleLine line;
  line.behavior_logprobs = {-0.1F, -1.17549435e-38F, -0.333333343F, -0.0F};
  line.response_ids = {1, 2, 3, 4};
  const auto back = storage::parse_sample_line(storage::write_sample_line(line));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back.value().behavior_logprobs, line.behavior_logprobs);
}

TEST(SampleLines, ALogProbabilityThatIsNotFiniteBecomesNull) {
  SampleLine line;
  line.response_ids = {1};
  line.behavior_logprobs = {static_cast<float>(kNan)};
  const std::string text = storage::write_sample_line(line);
  EXPECT_THAT(text, ::testing::HasSubstr("\"behavior_logprobs\":[null]"));
  const auto back = storage::parse_sample_line(text);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(std::isnan(back.value().behavior_logprobs.at(0)));
}

TEST(SampleLines, ALineOfAnOlderProgramIsRead) {
  const auto line = storage::parse_sample_line(R"({"step":1,"sample":2,"group":3,"reward":0.5})");
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  EXPECT_EQ(line.value().reward, 0.5);
  EXPECT_TRUE(line.value().versions.empty());
}

TEST(SampleLines, AnUnreadableLineIsRefused) {
  const std::string begin = R"({"step":1,"sample":2,"group":3,"reward":0.5)";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[]", "sample: must be a JSON object"},
      {R"({"step":1,"sample":2,"reward":0.5})",
       "sample: group: missing; must be an integer of at least 0"},
      {begin + R"(,"response_ids":[1]})",
       "sample: behavior_logprobs: must have as many elements as response_ids"},
      {begin + R"(,"versions":3})", "sample: versions: must be a list"},
      {begin + R"(,"versions":[{"step":1}]})",
       "sample: versions.tokens: missing; must be an integer of at least 0"},
      {begin + R"(,"rewards":{"form":"x"}})", "sample: rewards: must be an object of numbers"}};
  for (const auto& [text, message] : cases) {
    const auto line = storage::parse_sample_line(text);
    EXPECT_EQ(line.status().code(), Errc::kCorruptData) << text;
    EXPECT_EQ(line.status().message(), message) << text;
  }
}

TEST(SampleLines, TheStepIsFoundWithoutTheRest) {
  EXPECT_EQ(storage::step_of_sample_line(storage::write_sample_line(whole_sample())), 5U);
  EXPECT_EQ(storage::step_of_sample_line("{\"step\":17,#"), 17U);
  for (const char* text : {"", "{\"step\":17", "{\"step\":,", "{\"step\":-1,", "{\"sample\":1,",
                           "{\"step\":9223372036854775808,"}) {
    EXPECT_EQ(storage::step_of_sample_line(text), std::nullopt) << text;
  }
}

// -- meta.json ------------------------------------------------------------------------------------

CommitMeta whole_meta() {
  CommitMeta meta;
  meta.model = "/models/small";
  meta.random_weights = true;
  meta.data_digest = "d1";
  meta.tokenizer_digest = "t1";
  meta.version = {0, 2, 9};
  meta.base_digest = "b1";
  meta.adapter_digest = "a1";
  meta.records = {100, 200, "m1", "s1"};
  meta.evaluated_step = 8;
  meta.data_position = 17;
  meta.best = storage::BestMeta{0.1, 4, 1, "b2", "a2"};
  return meta;
}

constexpr const char* kWholeMeta = R"({
  "format": 1,
  "model": "/models/small",
  "random_weights": true,
  "data_digest": "d1",
  "line": 0,
  "incarnation": 2,
  "step": 9,
  "base_digest": "b1",
  "adapter_digest": "a1",
  "adapter": true,
  "metrics_bytes": 100,
  "samples_bytes": 200,
  "evaluated_step": 8,
  "data_position": 17,
  "tokenizer_digest": "t1",
  "metrics_digest": "m1",
  "samples_digest": "s1",
  "best": {
    "value": 0.1,
    "step": 4,
    "num_worse": 1,
    "base_digest": "b2",
    "adapter_digest": "a2"
  }
}
)";

// As the first programs wrote it.
constexpr const char* kOldMeta = R"({
  "format": 1,
  "line": 0,
  "incarnation": 0,
  "step": 3,
  "base_digest": "b1",
  "adapter_digest": "",
  "adapter": false,
  "metrics_bytes": 100,
  "samples_bytes": 0,
  "data_position": 12
}
)";

TEST(CommitMetaPart, HasTheseBytes) {
  EXPECT_EQ(storage::write_commit_meta(whole_meta()), kWholeMeta);
  EXPECT_EQ(storage::write_commit_meta({}),
            "{\n  \"format\": 1,\n  \"model\": \"\",\n  \"random_weights\": false,\n"
            "  \"data_digest\": \"\",\n  \"line\": 0,\n  \"incarnation\": 0,\n  \"step\": 0,\n"
            "  \"base_digest\": \"\",\n  \"adapter_digest\": \"\",\n  \"adapter\": false,\n"
            "  \"metrics_bytes\": 0,\n  \"samples_bytes\": 0,\n  \"evaluated_step\": 0,\n"
            "  \"data_position\": 0\n}\n");
}

TEST(CommitMetaPart, IsReadBack) {
  const auto whole = storage::parse_commit_meta(kWholeMeta, "meta.json");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ(whole.value(), whole_meta());
}

TEST(CommitMetaPart, ThatOfAnOlderProgramIsRead) {
  const auto old = storage::parse_commit_meta(kOldMeta, "meta.json");
  ASSERT_TRUE(old.ok()) << old.status().to_string();
  CommitMeta expected;
  expected.version.step = 3;
  expected.base_digest = "b1";
  expected.records.metrics_bytes = 100;
  expected.data_position = 12;
  EXPECT_EQ(old.value(), expected);
}

TEST(CommitMetaPart, AnUnreadablePartIsRefused) {
  const auto newer = storage::parse_commit_meta("{\"format\": 2}", "run: meta.json");
  EXPECT_EQ(newer.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(newer.status().message(),
            "run: meta.json: format 2 was written by a newer version of tidemill");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "meta.json: not JSON at byte 1"},
      {"[]", "meta.json: must be a JSON object"},
      {"{}", "meta.json: format: missing; must be an integer of at least 1"},
      {"{\"format\": 1}", "meta.json: line: missing; must be an integer from 0 to 1073741824"}};
  for (const auto& [text, message] : cases) {
    const auto meta = storage::parse_commit_meta(text, "meta.json");
    EXPECT_EQ(meta.status().code(), Errc::kCorruptData) << text;
    EXPECT_EQ(meta.status().message(), message) << text;
  }
  std::string bad_best = kWholeMeta;
  bad_best.replace(bad_best.find("\"value\": 0.1"), 12, "\"value\": \"x\"");
  EXPECT_EQ(storage::parse_commit_meta(bad_best, "meta.json").status().message(),
            "meta.json: best.value: must be a number");
}

// -- state.json -----------------------------------------------------------------------------------

TEST(RunStateFile, HasTheseBytesAndIsReadBack) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  ASSERT_TRUE(storage::write_run_state(files, folder.path(), {"failed", 12, "disk \"full\""}).ok());
  EXPECT_EQ(read_text_file(folder.path() / "state.json", 1000).value(),
            "{\"state\":\"failed\",\"steps\":12,\"reason\":\"disk \\\"full\\\"\"}\n");
  const auto back = storage::read_run_state(folder.path());
  ASSERT_TRUE(back.ok() && back.value().has_value());
  EXPECT_EQ(back.value()->state, "failed");
  EXPECT_EQ(back.value()->steps, 12U);
  EXPECT_EQ(back.value()->reason, "disk \"full\"");
}

TEST(RunStateFile, AMissingFileIsNoErrorAndABadOneIs) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  EXPECT_FALSE(storage::read_run_state(folder.path()).value().has_value());
  const std::pair<std::string, std::string> cases[] = {
      {R"({"state":"asleep","steps":1})", "state: not a known state"},
      {R"({"state":"running"})", "steps: missing; must be an integer of at least 0"},
      {R"({"state":"running","steps":-1})", "steps: must be an integer of at least 0"},
      {"{]", "not JSON at byte 2"}};
  for (const auto& [text, problem] : cases) {
    ASSERT_TRUE(write_file(files, folder.path() / "state.json", std::string_view(text)).ok());
    const Status refused = storage::read_run_state(folder.path()).status();
    EXPECT_EQ(refused.code(), Errc::kCorruptData) << text;
    EXPECT_EQ(refused.message(), (folder.path() / "state.json").string() + ": " + problem);
  }
  for (const char* state : {"running", "finished", "stopped", "failed"}) {
    ASSERT_TRUE(storage::write_run_state(files, folder.path(), {state, 1, ""}).ok());
    EXPECT_EQ(storage::read_run_state(folder.path()).value()->state, state);
  }
}

// -- lines ----------------------------------------------------------------------------------------

TEST(Lines, OnlyWholeLinesBeforeTheEndAreTaken) {
  const TemporaryDirectory folder;
  const auto path = folder.path() / "lines";
  const std::string large(3U << 20U, 'x');  // larger than a block
  std::ofstream(path) << "a\n\n" << large << "\nb\npartial";
  std::vector<std::string> lines;
  const auto take = [&lines](std::string_view line) -> Status {
    lines.emplace_back(line);
    return {};
  };
  ASSERT_TRUE(storage::for_each_line(path, std::filesystem::file_size(path), take).ok());
  EXPECT_THAT(lines, ElementsAre("a", "", large, "b"));
  lines.clear();
  ASSERT_TRUE(storage::for_each_line(path, 2, take).ok());
  EXPECT_THAT(lines, ElementsAre("a"));
  const auto refuse = [](std::string_view) { return corrupt_data("no"); };
  EXPECT_EQ(storage::for_each_line(path, 2, refuse).message(), "no");
}

}  // namespace
}  // namespace tidemill::test
