// SPDX-License-Identifier: Apache-2.0
// Decides which directories `export` may write to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/files/file.hpp"
#include "base/status.hpp"

namespace tidemill::launcher {

/// What an export writes.
enum class ExportKind : std::uint8_t { kModel, kAdapter };

/// Whether an export may replace the files of another model or adapter.
enum class Replace : std::uint8_t { kOwnExports, kAnyExport };

/// Where to export, and what.
struct ExportTarget {
  std::filesystem::path directory;
  std::string origin;  // names the run, or the model and the adapter that are merged; one line
  Replace replace = Replace::kOwnExports;
};

/// Checks that an export may write to `target.directory`. It may if the directory does not exist
/// but its parent does, if it is empty, or if it holds an earlier export whose file
/// `.tidemill-export` names the same origin. With `Replace::kAnyExport`, that file is not required.
/// Errors: `kInvalidArgument` naming the directory; `kNotFound` naming the parent; those of
/// `list_directory`.
[[nodiscard]] Status check_export_target(const ExportTarget& target);

/// Refuses a directory that contains files which an export of this kind does not write. If a model
/// and an adapter were in one directory, programs could load either. An empty or missing directory
/// is accepted.
/// Errors: `kInvalidArgument` naming the directory and the file; those of `list_directory`.
[[nodiscard]] Status check_export_kind(const std::filesystem::path& directory, ExportKind kind);

/// Makes the directory, unless it exists, and writes `.tidemill-export` into it.
/// Errors: those of the file system.
[[nodiscard]] Status mark_export_target(FileSystem& files, const ExportTarget& target);

}  // namespace tidemill::launcher
