// SPDX-License-Identifier: Apache-2.0
// A tensor file of the logits of many lines, written in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/file.hpp"
#include "base/status.hpp"

namespace tidemill::launcher {

/// Collects the tensors "0", "1", ... in a file beside the target, for the head of a tensor file
/// must know them all, and puts them into the target at the end.
class LogitsFile {
public:
  /// The most tensors that the head of a file can name.
  static constexpr std::size_t kMaxTensors = 8'000;

  /// Starts collecting for `target`. Borrows `files`.
  LogitsFile(FileSystem& files, std::filesystem::path target);
  LogitsFile(const LogitsFile&) = delete;
  LogitsFile& operator=(const LogitsFile&) = delete;
  /// Removes what was collected, if `finish` did not.
  ~LogitsFile();

  /// Adds the next tensor, of shape (values / columns, columns).
  /// Errors: as `DurableFile`; `kInvalidArgument` beyond `kMaxTensors`.
  [[nodiscard]] Status add(std::span<const float> values, std::int64_t columns);

  /// Writes the target. Call once, last. Errors: as `write_tensor_file`.
  [[nodiscard]] Status finish();

private:
  // The file of rows is ours; whoever gave the target knows that one alone.
  [[nodiscard]] Status with_target(const Status& status) const;

  FileSystem& files_;
  std::filesystem::path target_;
  std::filesystem::path rows_path_;
  std::unique_ptr<DurableFile> rows_;
  std::vector<std::vector<std::int64_t>> shapes_;
};

}  // namespace tidemill::launcher
