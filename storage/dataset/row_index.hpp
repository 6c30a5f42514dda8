// SPDX-License-Identifier: Apache-2.0
// Where the rows of some JSONL files are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/file.hpp"
#include "base/result.hpp"
#include "storage/dataset/dataset_options.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::storage {

/// Says whether a line can be used as a row.
using RowCheck = std::function<Status(std::string_view text)>;

/// Finds the files that `paths` name: files, or globs with at least one match. Sorted, each once.
/// A path that exists is taken as it is, whatever characters it holds.
/// Errors: `kNotFound` naming the path that matches no file; `kUnavailable`.
[[nodiscard]] Result<std::vector<std::string>> find_data_files(
    const std::vector<std::string>& paths);

/// The places and fingerprints of all usable rows; the rows themselves stay on disk.
///
/// Lines end with "\n" or "\r\n"; the last may end with the file. Lines of white space alone are
/// passed over. Threads: one call at a time.
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

  /// Returns where row `number` stands. Requires `number` < `num_rows()`.
  [[nodiscard]] RowPlace place(std::uint64_t number) const;
  /// Reads row `number`. Requires `number` < `num_rows()`.
  /// Errors: `kCorruptData` when its bytes are not those indexed; as `ReadableFile::open`.
  [[nodiscard]] Result<std::string> read(std::uint64_t number);

private:
  struct RowEntry {
    std::uint64_t offset;
    std::uint32_t size_bytes;
    std::uint32_t fingerprint;
    std::uint32_t line;
    std::uint32_t file;
  };
  class Builder;

  RowIndex() = default;

  std::vector<std::string> files_;
  std::vector<RowEntry> rows_;
  std::uint64_t num_skipped_ = 0;
  std::vector<std::string> first_skipped_;
  std::string digest_;
  std::optional<ReadableFile> open_file_;  // the one read last
};

}  // namespace tidemill::storage
