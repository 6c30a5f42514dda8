// SPDX-License-Identifier: Apache-2.0
// Private to storage/dataset. The function that the program calls in the module that reads Parquet
// files. Program and module are built together, so they agree on the types.
#pragma once

#include "base/status.hpp"
#include "storage/dataset/parquet_rows.hpp"

namespace tidemill::storage {

/// Does what `read_parquet_rows` describes, and sets `outcome` to its result. Messages of errors
/// may be long and have several lines.
using ReadParquetFunction = void(const ParquetInput& input, const ParquetLimits& limits,
                                 const OnParquetRow& on_row, Status& outcome);

/// The name of the function in the module. Change the number with the types above.
inline constexpr const char* kReadParquetFunction = "tidemill_read_parquet_1";

}  // namespace tidemill::storage
