// SPDX-License-Identifier: Apache-2.0
// Checks which directories `export` may write to.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.hpp"

namespace tidemill::launcher {

enum class ExportKind : std::uint8_t { kModel, kAdapter };

/// Refuses a directory that contains files which an export of this kind does not write. If a model
/// and an adapter were in one directory, programs could load either. An empty or missing directory
/// is accepted.
/// Errors: `kInvalidArgument` naming the directory and the file; those of `list_directory`.
[[nodiscard]] Status check_export_target(const std::filesystem::path& directory, ExportKind kind);

}  // namespace tidemill::launcher
