// SPDX-License-Identifier: Apache-2.0
// Builds without Apache Arrow refuse runs on Parquet files.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

TEST(ParquetRefusedRunsTest, NamesTheFileAndWhatToDo) {
  const RunFolder folder;
  folder.write("rows.parquet", "PAR1 and more");
  folder.write("run.yaml", "workflow: sft\nmodel: {path: " TIDEMILL_SOURCE_DIR
                           "/examples/models/arithmetic}\ndata: {train: rows.parquet}\n"
                           "train: {steps: 2, sequences_per_step: 2}\n");
  const auto ended = folder.run({"run", "run.yaml"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 2) << ended->describe();
  EXPECT_THAT(
      ended->err,
      ::testing::StartsWith("rows.parquet: is a Parquet file, which this build cannot read; build "
                            "again with `./mill parquet`, or convert it: python3 "));
}

}  // namespace
}  // namespace tidemill::test
