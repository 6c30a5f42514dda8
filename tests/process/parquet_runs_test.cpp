// SPDX-License-Identifier: Apache-2.0
// Runs whose data is a Parquet file end with the bits of the same runs on JSON Lines.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ParquetRunsTest : public ::testing::Test {
protected:
  ParquetRunsTest() {
    for (const char* name : {"sums.parquet", "sums.jsonl"}) {
      folder_.write(name, read_file(std::string(TIDEMILL_TEST_DIR "/golden/parquet/") + name));
    }
    folder_.write("run.yaml", "workflow: sft\nmodel: {path: " TIDEMILL_SOURCE_DIR
                              "/examples/models/arithmetic}\nseed: 5\neval: {every_steps: 2}\n"
                              "train: {steps: 6, sequences_per_step: 5, learning_rate: 1e-3}\n");
  }
  ~ParquetRunsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  [[nodiscard]] Ended run(const std::vector<std::string>& arguments) const {
    const auto ended = folder_.run(arguments);
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }
  // Trains on `data` for `steps` steps. The 6 steps of a whole run draw each row two or three
  // times.
  [[nodiscard]] Ended train(const std::string& name, const std::string& data, int steps) const {
    return run({"run", "run.yaml", "name=" + name, "data.train=" + data, "data.eval=" + data,
                "train.steps=" + std::to_string(steps)});
  }

  RunFolder folder_;
};

TEST_F(ParquetRunsTest, EndsLikeARunOnJsonLines) {
  const Ended lines = train("lines", "sums.jsonl", 6);
  EXPECT_EQ(lines.code, 0) << lines.describe();
  const Ended parquet = train("parquet", "sums.parquet", 6);
  EXPECT_EQ(parquet.code, 0) << parquet.describe();
  EXPECT_EQ(difference(run_output(folder_, "lines"), run_output(folder_, "parquet")), "");
  EXPECT_EQ(folder_.metrics_steps("parquet"), steps_up_to(6));
}

TEST_F(ParquetRunsTest, ResumesWithTheNextRow) {
  EXPECT_EQ(train("whole", "sums.parquet", 6).code, 0);
  EXPECT_EQ(train("parts", "sums.parquet", 4).code, 0);
  const Ended resumed = run({"resume", "parts", "train.steps=6"});
  EXPECT_EQ(resumed.code, 0) << resumed.describe();
  EXPECT_EQ(folder_.exported_weights("parts"), folder_.exported_weights("whole"));
  EXPECT_EQ(folder_.evaluations("parts"), folder_.evaluations("whole"));
}

TEST_F(ParquetRunsTest, NoticesChangedData) {
  EXPECT_EQ(train("parts", "sums.parquet", 2).code, 0);
  folder_.write("sums.parquet", read_file(TIDEMILL_TEST_DIR "/golden/parquet/tokens.parquet"));
  const Ended resumed = run({"resume", "parts", "train.steps=6"});
  EXPECT_EQ(resumed.code, 2) << resumed.describe();
  EXPECT_THAT(resumed.last_error_line(),
              HasSubstr("data.train: sums.parquet: not the data that the run was started with"));
}

TEST_F(ParquetRunsTest, RefusesDamagedFiles) {
  folder_.write("bad.parquet", "PAR1 and more");
  const Ended ended = train("bad", "bad.parquet", 6);
  EXPECT_EQ(ended.code, 2) << ended.describe();
  EXPECT_THAT(ended.err, StartsWith("bad.parquet: is not a Parquet file that can be read: "));
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

}  // namespace
}  // namespace tidemill::test
