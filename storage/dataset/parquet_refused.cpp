// SPDX-License-Identifier: Apache-2.0
// Takes the place of parquet_rows.cpp in builds without Apache Arrow.
#include "storage/dataset/parquet_rows.hpp"

namespace tidemill::storage {

Status read_parquet_rows(const ParquetInput& /*input*/, const ParquetLimits& /*limits*/,
                         const OnParquetRow& /*on_row*/) {
  return invalid_argument(
      "is a Parquet file, which this build cannot read; build again with `./mill parquet`, or "
      "convert it: python3 -c \"import sys, pandas; "
      "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)\" "
      "FILE.parquet FILE.jsonl");
}

}  // namespace tidemill::storage
