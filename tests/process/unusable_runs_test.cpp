// SPDX-License-Identifier: Apache-2.0
// Tests runs that cannot be resumed: in use by another process, made by a newer program, damaged,
// or without their model. Each is refused with one line that names the problem, and nothing is
// lost.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// By then, at least two commits are complete.
constexpr int kKilledInStep = 5;
constexpr const char* kCheckpoints = "runs/gated/checkpoints/";

class UnusableRunsTest : public ::testing::Test {
protected:
  explicit UnusableRunsTest(const std::string& model = random_model()) : model_(model) {
    folder_.write_rows();
    folder_.write("run.yaml", gated_config(model_));
  }
  ~UnusableRunsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  [[nodiscard]] std::filesystem::path at(const std::string& name) const {
    return folder_.path() / name;
  }

  Ended run(const std::vector<std::string>& arguments) const {
    const auto ended = folder_.run(arguments);
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  // Expects that resuming is refused with one line that matches `line`.
  void expect_refused(const ::testing::Matcher<std::string>& line) const {
    const Ended ended = run({"resume", "runs/gated"});
    EXPECT_NE(ended.code, 0) << ended.describe();
    EXPECT_EQ(ended.signal, 0) << ended.describe();
    EXPECT_THAT(ended.err, line);
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }

  // Runs the program, which must end with the results of the undisturbed run.
  void expect_ends_as_undisturbed(const std::vector<std::string>& arguments) const {
    const Ended resumed = run(arguments);
    ASSERT_EQ(resumed.code, 0) << resumed.describe();
    expect_as_undisturbed();
  }
  void expect_as_undisturbed() const {
    EXPECT_EQ(difference(undisturbed(), run_output(folder_, kGatedRun)), "");
  }
  [[nodiscard]] std::string undisturbed_weights() const { return undisturbed().weights; }
  [[nodiscard]] RunOutput undisturbed() const {
    RunFolder other;
    other.write_rows();
    if (std::filesystem::exists(at("model"))) {
      std::filesystem::copy(at("model"), other.path() / "model");
    }
    other.write("run.yaml", gated_config(model_));
    const auto ended = other.run({"run", "run.yaml"});
    EXPECT_TRUE(ended.has_value()) << "hangs";
    EXPECT_EQ(ended.value_or(Ended{}).code, 0) << ended.value_or(Ended{}).describe();
    return run_output(other, kGatedRun);
  }

  void flip_byte_in_middle(const std::filesystem::path& file) const {
    std::string bytes = read_file(file);
    ASSERT_FALSE(bytes.empty()) << file;
    bytes[bytes.size() / 2] ^= 1;
    folder_.write(std::filesystem::relative(file, folder_.path()).string(), bytes);
  }

  // Returns the path of the file that holds a part of a commit.
  [[nodiscard]] std::filesystem::path part_of(const std::filesystem::path& manifest,
                                              const std::string& part) const {
    return at(std::string(kCheckpoints) + "objects") / folder_.object_of(manifest, part);
  }

  std::string model_;
  RunFolder folder_;
};

TEST_F(UnusableRunsTest, ASecondProcessIsRefusedWhileTheFirstIsRunning) {
  const RewardGate gate(folder_);
  gate.set_behavior("gate " + std::to_string(kGatedRows));
  ProgramRun first(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(gate.wait_reached());
  expect_refused("runs/gated: in use by process " + std::to_string(first.pid()) + "\n");
  const Ended again = run({"run", "run.yaml"});
  EXPECT_EQ(again.code, 2);
  EXPECT_EQ(again.err, "runs/gated: the run exists; resume it, or give another name\n");
  gate.open();
  const auto ended = first.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  gate.clear_behavior();
  expect_as_undisturbed();
}

TEST_F(UnusableRunsTest, ADirectoryLeftBeforeTheRunBeganIsUsed) {
  std::filesystem::create_directories(at("runs/gated"));
  folder_.write("runs/gated/.tmp-1-0", "workflow: rl\nna");
  folder_.write("runs/gated/lock", "1\n");
  expect_refused("runs/gated/run.yaml: no such file; every run directory has one\n");
  expect_ends_as_undisturbed({"run", "run.yaml"});
}

TEST_F(UnusableRunsTest, ADirectoryWithOtherFilesIsNotUsed) {
  std::filesystem::create_directories(at("runs/gated"));
  folder_.write("runs/gated/notes.txt", "mine");
  const Ended ended = run({"run", "run.yaml"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "runs/gated: the run exists; resume it, or give another name\n");
  EXPECT_EQ(read_file(at("runs/gated/notes.txt")), "mine");
}

TEST_F(UnusableRunsTest, ARunOfANewerProgram) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  const std::string store = read_file(at(std::string(kCheckpoints) + "store.json"));
  folder_.write(std::string(kCheckpoints) + "store.json", R"({"format": 2, "run": "gated"})");
  expect_refused(
      "runs/gated/checkpoints/store.json: made by a newer version of tidemill (format 2; this one "
      "reads up to 1)\n");
  folder_.write(std::string(kCheckpoints) + "store.json", store);
  const std::string config = read_file(at("runs/gated/run.yaml"));
  folder_.write("runs/gated/run.yaml", config + "teleport: {max: 3}\n");
  expect_refused(AllOf(StartsWith("runs/gated/run.yaml:"), EndsWith("teleport: unknown key\n")));
  folder_.write("runs/gated/run.yaml", config);
  expect_ends_as_undisturbed({"resume", "runs/gated"});
}

TEST_F(UnusableRunsTest, ADamagedLastCommitIsSkippedOnlyOnRequest) {
  for (const char* part : {"weights", "optimizer", "stream", "meta.json"}) {
    SCOPED_TRACE(part);
    std::filesystem::remove_all(at("runs"));
    ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
    const auto manifests = folder_.manifests(kGatedRun);
    ASSERT_GE(manifests.size(), 2U);
    const std::filesystem::path file = part_of(manifests.front(), part);
    flip_byte_in_middle(file);
    expect_refused(AllOf(StartsWith(std::string(part) + ": runs/gated/checkpoints/objects/" +
                                    file.filename().string() + ": damaged: "),
                         EndsWith(" is intact; to resume from it: tidemill resume runs/gated "
                                  "--use-commit-before\n")));
    expect_ends_as_undisturbed({"resume", "runs/gated", "--use-commit-before"});
  }
}

TEST_F(UnusableRunsTest, ATruncatedManifest) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  const std::filesystem::path manifest = folder_.manifests(kGatedRun).front();
  std::filesystem::resize_file(manifest, std::filesystem::file_size(manifest) / 2);
  expect_refused(HasSubstr(manifest.filename().string() + ": damaged: "));
  expect_ends_as_undisturbed({"resume", "runs/gated", "--use-commit-before"});
}

TEST_F(UnusableRunsTest, AMissingPart) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  std::filesystem::remove(part_of(folder_.manifests(kGatedRun).front(), "weights"));
  expect_refused(HasSubstr(": missing; an earlier commit, of step "));
  expect_ends_as_undisturbed({"resume", "runs/gated", "--use-commit-before"});
}

TEST_F(UnusableRunsTest, BothCommitsDamaged) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  const auto manifests = folder_.manifests(kGatedRun);
  for (const auto& manifest : manifests) {
    flip_byte_in_middle(part_of(manifest, "weights"));
  }
  expect_refused(EndsWith("; no earlier commit is intact\n"));
  const Ended ended = run({"resume", "runs/gated", "--use-commit-before"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, EndsWith("; no earlier commit is intact\n"));
  EXPECT_EQ(folder_.manifests(kGatedRun), manifests) << "nothing may be removed";
}

// It would start again and remove its records and its exported model.
TEST_F(UnusableRunsTest, AFinishedRunWhoseCommitsAreLost) {
  ASSERT_EQ(run({"run", "run.yaml"}).code, 0);
  const RunOutput finished = run_output(folder_, kGatedRun);
  for (const auto& manifest : folder_.manifests(kGatedRun)) {
    std::filesystem::remove(manifest);
  }
  expect_refused(StartsWith("runs/gated/checkpoints: has no commit, but the run has finished"));
  std::filesystem::remove_all(at(kCheckpoints));
  expect_refused(StartsWith("runs/gated/checkpoints: has no commit, but the run has finished"));
  EXPECT_EQ(difference(finished, run_output(folder_, kGatedRun)), "");
}

TEST_F(UnusableRunsTest, RecordsShorterThanTheCommitSays) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  const std::string samples = folder_.samples(kGatedRun);
  folder_.write("runs/gated/samples.jsonl", samples.substr(0, 10));
  expect_refused(
      AllOf(StartsWith("runs/gated/samples.jsonl: 10 bytes, but the last commit recorded "),
            EndsWith("; to go on without what is lost: tidemill resume runs/gated "
                     "--accept-lost-records\n")));
  folder_.write("runs/gated/samples.jsonl", samples);
  expect_ends_as_undisturbed({"resume", "runs/gated"});
}

// The records of a commit are lost or changed. The run goes on without them on request, and only
// the records differ from those of the undisturbed run.
TEST_F(UnusableRunsTest, LostRecordsAreAcceptedOnlyOnRequest) {
  struct Case {
    std::string file;
    std::string message;
    bool all_steps;  // metrics.jsonl of the resumed run begins with step 1
    std::function<void(const std::string& path)> damage;
  };
  const auto remove = [this](const std::string& path) { std::filesystem::remove(at(path)); };
  const auto shorten = [this](const std::string& path) {
    std::filesystem::resize_file(at(path), read_file(at(path)).find('\n') + 5);
  };
  const auto flip = [this](const std::string& path) {
    std::string bytes = read_file(at(path));
    bytes[bytes.find("\"step\"") + 1] ^= 1;
    folder_.write(path, bytes);
  };
  const std::vector<Case> cases{{"metrics.jsonl", ": missing, but ", false, remove},
                                {"metrics.jsonl", " bytes, but ", true, shorten},
                                {"samples.jsonl", ": missing, but ", true, remove},
                                {"samples.jsonl", " have changed; ", true, flip}};
  const std::string weights = undisturbed_weights();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.file + c.message);
    std::filesystem::remove_all(at("runs"));
    ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
    c.damage("runs/gated/" + c.file);
    expect_refused(AllOf(StartsWith("runs/gated/" + c.file), HasSubstr(c.message),
                         EndsWith("tidemill resume runs/gated --accept-lost-records\n")));
    const std::uint64_t committed = folder_.commits(kGatedRun).last_step.value_or(0);
    const Ended resumed = run({"resume", "runs/gated", "--accept-lost-records"});
    ASSERT_EQ(resumed.code, 0) << resumed.describe();
    EXPECT_EQ(folder_.exported_weights(kGatedRun), weights);
    const auto steps = folder_.metrics_steps(kGatedRun);
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.front(), c.all_steps ? 1U : committed + 1);
    EXPECT_EQ(steps.back(), kGatedSteps);
  }
}

TEST_F(UnusableRunsTest, MetricsThatAreRemovedDuringTheRunEndIt) {
  const RewardGate gate(folder_);
  gate.set_behavior("gate " + std::to_string(4 * kGatedRows));
  ProgramRun first(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(gate.wait_reached());
  std::filesystem::remove(at("runs/gated/metrics.jsonl"));
  gate.open();
  const auto ended = first.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_THAT(ended->last_error_line(), HasSubstr("runs/gated/metrics.jsonl: was removed"));
  gate.clear_behavior();
  const Ended resumed = run({"resume", "runs/gated", "--accept-lost-records"});
  ASSERT_EQ(resumed.code, 0) << resumed.describe();
  EXPECT_EQ(folder_.exported_weights(kGatedRun), undisturbed_weights());
}

TEST_F(UnusableRunsTest, ARenamedRunIsResumed) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  std::filesystem::rename(at("runs/gated"), at("runs/renamed"));
  const Ended resumed = run({"resume", "runs/renamed"});
  ASSERT_EQ(resumed.code, 0) << resumed.describe();
  EXPECT_EQ(folder_.exported_weights("renamed"), undisturbed_weights());
  EXPECT_EQ(folder_.metrics_steps("renamed"), steps_up_to(kGatedSteps));
}

TEST_F(UnusableRunsTest, ARunThatDoesNotExist) {
  const Ended ended = run({"resume", "runs/missing"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "runs/missing: no such run; tidemill runs lists all runs\n");
}

class RunsWithoutModelTest : public UnusableRunsTest {
protected:
  RunsWithoutModelTest() : UnusableRunsTest("model: {path: model}\n") {
    std::filesystem::copy(TIDEMILL_TEST_DIR "/golden/engine/models/llama-tiny", at("model"));
  }
};

TEST_F(RunsWithoutModelTest, AMissingOrInvalidModel) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  const std::string config = read_file(at("model/config.json"));
  const std::string weights = read_file(at("model/model.safetensors"));

  std::filesystem::rename(at("model"), at("elsewhere"));
  expect_refused(StartsWith("model.path: no folder or GGUF file `model`"));
  std::filesystem::rename(at("elsewhere"), at("model"));

  folder_.write("model/config.json", config.substr(0, config.size() / 2));
  expect_refused(StartsWith("model/config.json: "));
  folder_.write("model/config.json", config);

  folder_.write("model/model.safetensors", weights.substr(0, weights.size() / 2));
  expect_refused(StartsWith("model/model.safetensors: "));
  folder_.write("model/model.safetensors", weights);

  expect_ends_as_undisturbed({"resume", "runs/gated"});
}

TEST_F(RunsWithoutModelTest, AChangedTokenizer) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  const std::string tokenizer = read_file(at("model/tokenizer.json"));
  const std::string chat_template = read_file(at("model/chat_template.jinja"));
  folder_.write("model/tokenizer.json", tokenizer + "\n");
  const std::string line =
      "model.path: the tokenizer or the chat template is not the one that the run was started "
      "with\n";
  expect_refused(EndsWith(line));
  folder_.write("model/tokenizer.json", tokenizer);
  folder_.write("model/chat_template.jinja", "{{ messages[0].content }}");
  expect_refused(EndsWith(line));
  folder_.write("model/chat_template.jinja", chat_template);
  expect_ends_as_undisturbed({"resume", "runs/gated"});
}

// Templates show the date of the run's first start, so that a resumed run has the same prompts as
// an undisturbed one.
TEST_F(RunsWithoutModelTest, TheDateInPromptsIsThatOfTheFirstStart) {
  folder_.write("model/chat_template.jinja",
                "{% if strftime_now('%Y') == '1999' %}{{ raise_exception('it is 1999') }}"
                "{% endif %}{{ messages[0].content }}");
  std::string rows;
  for (const char* text : {"one", "two", "three", "four"}) {
    rows += R"({"messages": [{"role": "user", "content": ")" + std::string(text) +
            R"("}], "answer": ""})" + "\n";
  }
  folder_.write("rows.jsonl", rows);
  ASSERT_TRUE(begin_and_kill(folder_, kKilledInStep));
  folder_.write("runs/gated/started", "1999-12-31T23:59:59\n");
  const Ended refused = run({"resume", "runs/gated"});  // may run some steps first
  EXPECT_NE(refused.code, 0) << refused.describe();
  EXPECT_THAT(refused.last_error_line(), HasSubstr("it is 1999"));
}

}  // namespace
}  // namespace tidemill::test
