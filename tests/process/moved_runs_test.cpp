// SPDX-License-Identifier: Apache-2.0
// Tests runs whose folder is renamed or removed while they work: they end with one line, and write
// nothing into the folder that has taken the old path.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;

constexpr int kMovedInStep = 4;

class MovedRunsTest : public ::testing::Test {
protected:
  MovedRunsTest() {
    folder_.write_rows();
    folder_.write("run.yaml", gated_config(random_model()));
  }
  ~MovedRunsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  [[nodiscard]] std::filesystem::path at(const std::string& name) const {
    return folder_.path() / name;
  }
  [[nodiscard]] std::filesystem::path current(const std::string& name) const {
    return std::filesystem::canonical(at(name));
  }

  // Carries out a run and puts its folder aside, as `other`.
  void make_other_run() const {
    const auto ended = folder_.run({"run", "run.yaml"});
    ASSERT_TRUE(ended.has_value()) << "hangs";
    ASSERT_EQ(ended->code, 0) << ended->describe();
    std::filesystem::rename(at("runs/gated"), at("other"));
  }

  // Returns the bytes of all files below `name`, by their paths.
  [[nodiscard]] std::map<std::string, std::string> files_of(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(at(name))) {
      if (entry.is_regular_file()) {
        files[std::filesystem::relative(entry.path(), at(name)).string()] = read_file(entry.path());
      }
    }
    return files;
  }

  void expect_moved_run_resumes() const {
    const auto state = nlohmann::json::parse(read_file(at("runs/mine/state.json")));
    EXPECT_EQ(state.at("state"), "failed");
    EXPECT_THAT(state.at("reason").get<std::string>(), HasSubstr("was renamed to"));
    EXPECT_THAT(read_file(at("runs/mine/log.txt")), HasSubstr("was renamed to"));
    const auto resumed = folder_.run({"resume", "mine"});
    ASSERT_TRUE(resumed.has_value()) << "hangs";
    EXPECT_EQ(resumed->code, 0) << resumed->describe();
    RunFolder undisturbed;
    std::filesystem::create_directory(undisturbed.path() / "runs");
    std::filesystem::copy(at("other"), undisturbed.path() / "runs/mine",
                          std::filesystem::copy_options::recursive);
    EXPECT_EQ(difference(run_output(undisturbed, "mine"), run_output(folder_, "mine")), "");
  }

  RunFolder folder_;
};

// The reward program is started for the first time before the run has opened any of its files. It
// renames the folder and puts another run in its place.
TEST_F(MovedRunsTest, AFolderThatIsReplacedBeforeTheFirstStep) {
  ASSERT_NO_FATAL_FAILURE(make_other_run());
  folder_.write("move.sh",
                "if mkdir moved 2> none; then mv runs/gated runs/mine\n"
                "cp -r other runs/gated; fi\n"
                "exec python3 " TIDEMILL_TEST_DIR "/process/reward_program.py .\n");
  std::string config = gated_config(random_model());
  const std::string command = "[python3, " TIDEMILL_TEST_DIR "/process/reward_program.py, .]";
  config.replace(config.find(command), command.size(), "[sh, move.sh]");
  folder_.write("run.yaml", config);
  const auto ended = folder_.run({"run", "run.yaml"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_EQ(ended->last_error_line(), "runs/gated: was renamed to " +
                                          current("runs/mine").string() +
                                          " during the run; to continue it: tidemill resume " +
                                          current("runs/mine").string());
  EXPECT_TRUE(files_of("runs/gated") == files_of("other"));
  expect_moved_run_resumes();
}

TEST_F(MovedRunsTest, AFolderThatIsReplacedInALaterStep) {
  ASSERT_NO_FATAL_FAILURE(make_other_run());
  const RewardGate gate(folder_);
  gate.set_behavior("gate " + std::to_string(kMovedInStep * kGatedRows));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(gate.wait_reached());
  gate.clear_behavior();
  std::filesystem::rename(at("runs/gated"), at("runs/mine"));
  std::filesystem::copy(at("other"), at("runs/gated"), std::filesystem::copy_options::recursive);
  gate.open();
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_THAT(ended->last_error_line(),
              HasSubstr("runs/gated: was renamed to " + current("runs/mine").string()));
  EXPECT_TRUE(files_of("runs/gated") == files_of("other"));
  expect_moved_run_resumes();
}

TEST_F(MovedRunsTest, AFolderThatIsRemovedIsNotMadeAgain) {
  const RewardGate gate(folder_);
  gate.set_behavior("gate " + std::to_string(kMovedInStep * kGatedRows));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(gate.wait_reached());
  gate.clear_behavior();
  // The run may write a commit meanwhile, which makes one attempt fail.
  std::error_code error;
  for (int i = 0; i < 1000 && std::filesystem::exists(at("runs/gated"), error); ++i) {
    std::filesystem::remove_all(at("runs/gated"), error);
  }
  gate.open();
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_EQ(ended->last_error_line(), "runs/gated: was removed during the run");
  EXPECT_FALSE(std::filesystem::exists(at("runs/gated")));
}

}  // namespace
}  // namespace tidemill::test
