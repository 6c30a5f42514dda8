// SPDX-License-Identifier: Apache-2.0
// Writes the logits of many lines to a tensor file, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/files/file.hpp"
#include "base/status.hpp"

namespace tidemill::launcher {

/// Collects the tensors "0", "1", ... in a temporary file next to the target, and writes the target
/// at the end. This is needed because the header of a tensor file lists all tensors.
class LogitsFile {
public:
  /// The maximum number of tensors that the header of a file can list.
  static constexpr std::size_t kMaxTensors = 8'000;

  /// Starts collecting for `target`. Borrows `files`.
  LogitsFile(FileSystem& files, std::filesystem::path target);
  LogitsFile(const LogitsFile&) = delete;
  LogitsFile& operator=(const LogitsFile&) = delete;
  /// Removes the temporary file.
  ~LogitsFile();

  /// Adds the next tensor, of shape (values / columns, columns).
  /// Errors: those of `DurableFile`; `kInvalidArgument` for more than `kMaxTensors` tensors.
  [[nodiscard]] Status add(std::span<const float> values, std::int64_t columns);

  /// Writes the target. Must be called once, after the last `add`.
  /// Errors: those of `write_tensor_file`.
  [[nodiscard]] Status finish();

private:
  // Returns `status` with the path of the temporary file replaced by that of the target, which is
  // the one that the user knows.
  [[nodiscard]] Status with_target(const Status& status) const;

  FileSystem& files_;
  std::filesystem::path target_;
  std::filesystem::path rows_path_;
  std::unique_ptr<DurableFile> rows_;
  std::vector<std::vector<std::int64_t>> shapes_;
};

}  // namespace tidemill::launcher
