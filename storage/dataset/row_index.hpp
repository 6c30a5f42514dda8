// SPDX-License-Identifier: Apache-2.0
// The locations of the rows in files of JSON Lines, in files that are one JSON array, and in
// Parquet files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "base/result.hpp"
#include "storage/dataset/dataset_options.hpp"
#include "storage/dataset/row_spool.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::storage {

/// How many times larger than its file the JSON of a Parquet file's rows may be, plus
/// `kMinParquetText`. It bounds time and disk; files of texts are far below.
inline constexpr std::uint64_t kMaxParquetGrowth = 1000;
inline constexpr std::uint64_t kMinParquetText = 64ULL << 20U;

/// Checks whether a text can be used as a row.
using RowCheck = std::function<Status(std::string_view text)>;

/// Finds the files that `paths` name, which may be globs with at least one match. The result is
/// sorted and has no duplicates. A path that exists is used unchanged, whatever characters it has.
/// Errors: `kNotFound` naming the path that matches no file; `kUnavailable`.
[[nodiscard]] Result<std::vector<std::string>> find_data_files(
    const std::vector<std::string>& paths);

/// The locations and fingerprints of all usable rows. The rows themselves stay on disk.
///
/// A file that begins with "PAR1" is a Parquet file; the JSON of its rows is kept in a temporary
/// file. A file whose first byte other than white space is "[" is one array, whose elements are
/// rows. In other files each line is a row: lines end with "\n" or "\r\n", the last one may end
/// with the file, and lines of white space are skipped.
///
/// Threads: one call at a time.
class RowIndex {
public:
  /// Reads all files once. Errors: as `Dataset::open`.
  [[nodiscard]] static Result<std::unique_ptr<RowIndex>> build(const DatasetOptions& options,
                                                               const RowCheck& check);

  [[nodiscard]] std::uint64_t num_rows() const noexcept { return rows_.size(); }
  [[nodiscard]] const std::vector<std::string>& files() const noexcept { return files_; }
  [[nodiscard]] std::uint64_t num_skipped() const noexcept { return num_skipped_; }
  [[nodiscard]] const std::vector<std::string>& first_skipped() const noexcept {
    return first_skipped_;
  }
  [[nodiscard]] const std::string& digest() const noexcept { return digest_; }

  /// Returns the location of row `number`. Requires `number` < `num_rows()`.
  [[nodiscard]] RowLocation location(std::uint64_t number) const;
  /// Reads row `number`. Requires `number` < `num_rows()`.
  /// Errors: `kCorruptData` if its bytes differ from those indexed; as `ReadableFile::open`.
  [[nodiscard]] Result<std::string> read(std::uint64_t number);

private:
  struct RowEntry {
    std::uint64_t offset;  // in its file, or in the spool
    std::uint32_t size_bytes;
    std::uint32_t fingerprint;
    std::uint32_t line;
    std::uint32_t file;
  };
  class Builder;

  RowIndex() = default;

  [[nodiscard]] Status open(const std::string& path);

  std::vector<std::string> files_;
  std::vector<bool> in_spool_;  // for each file: its rows are in the spool
  std::vector<RowEntry> rows_;
  std::uint64_t num_skipped_ = 0;
  std::vector<std::string> first_skipped_;
  std::string digest_;
  std::optional<ReadableFile> open_file_;  // the file that was read last
  std::optional<RowSpool> spool_;          // if a file is a Parquet file
};

}  // namespace tidemill::storage
