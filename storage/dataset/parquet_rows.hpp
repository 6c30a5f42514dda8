// SPDX-License-Identifier: Apache-2.0
// Private to storage/dataset. Reads the rows of a Parquet file as JSON.
//
// Programs that read no Parquet file should not carry the library that does: its code is larger
// than theirs. It is linked into a shared module, which is loaded when the first Parquet file is
// read (parquet_rows.cpp, parquet/arrow_rows.cpp). Builds without the library refuse Parquet files
// (parquet_refused.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/status.hpp"

namespace tidemill::storage {

/// The maximum memory for decoding a Parquet file: its pages, and the rows of one batch. The
/// description of the file at its end takes memory besides, a few times its size.
inline constexpr std::int64_t kMaxParquetBytes = 512LL << 20U;
/// The maximum depth of a Parquet file's schema. A struct adds a level, a list two.
inline constexpr int kMaxParquetDepth = 64;
/// The maximum size of any list in the description of a Parquet file, such as its row groups.
inline constexpr int kMaxParquetListed = 100'000;

/// The bytes of a Parquet file.
struct ParquetInput {
  std::uint64_t size_bytes = 0;
  /// Fills `bytes` with the content from `offset` on.
  std::function<Status(std::uint64_t offset, std::span<std::byte> bytes)> read_at;
};

/// The limits of a Parquet file.
struct ParquetLimits {
  std::uint64_t max_row_bytes = 0;  // of the JSON of a row
  std::uint64_t max_rows = 0;
};

/// A row of a Parquet file.
struct ParquetRow {
  std::string_view text;     // a JSON object; empty if `too_long`, or if there is a `problem`
  std::uint64_t number = 1;  // in its file, from 1
  bool too_long = false;
  Status problem;  // why the row has no JSON
};

/// Receives a row. An error ends the reading of the file.
using OnParquetRow = std::function<Status(const ParquetRow& row)>;

/// Reads the rows of a Parquet file in their order, a few at a time. The members of a row are the
/// columns in their order. Integers, floats, booleans and texts become what JSON has for them;
/// lists become arrays, structs become objects, and a missing value becomes null. Errors:
/// `kInvalidArgument` for a file that is damaged or encrypted, that has a column of another type,
/// that needs more memory than `kMaxParquetBytes`, or if this build cannot read Parquet files;
/// `kResourceExhausted` for too many rows; those of `read_at` and `on_row`.
[[nodiscard]] Status read_parquet_rows(const ParquetInput& input, const ParquetLimits& limits,
                                       const OnParquetRow& on_row);

}  // namespace tidemill::storage
