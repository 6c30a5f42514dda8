// SPDX-License-Identifier: Apache-2.0
// Builds without Apache Arrow refuse Parquet files.
#include <string>

#include <gmock/gmock.h>

#include "storage/dataset/dataset.hpp"

namespace tidemill::storage {
namespace {

TEST(ParquetRefusedTest, NamesTheBuildAndTheCommandThatConverts) {
  DatasetOptions options;
  options.paths = {TIDEMILL_TEST_DIR "/golden/parquet/sums.parquet"};
  options.on_error = OnRowError::kSkip;
  const Status status = PromptDataset::open(options).status();
  EXPECT_EQ(status.code(), Errc::kInvalidArgument);
  EXPECT_EQ(status.message(),
            options.paths[0] +
                ": is a Parquet file, which this build cannot read; build again with `./mill "
                "parquet`, or convert it: python3 -c \"import sys, pandas; "
                "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', "
                "lines=True)\" FILE.parquet FILE.jsonl");
}

}  // namespace
}  // namespace tidemill::storage
