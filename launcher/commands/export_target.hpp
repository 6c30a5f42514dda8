// SPDX-License-Identifier: Apache-2.0
// Which directories `export` may write.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.hpp"

namespace tidemill::launcher {

enum class ExportKind : std::uint8_t { kModel, kAdapter };

/// Refuses a directory that holds anything but what an export of this kind writes: two kinds of
/// files in one place would be loaded as either, and other people's files would be littered. One
/// that is empty, or not there, is fine.
/// Errors: `kInvalidArgument` naming the directory and what it holds; as `list_directory`.
[[nodiscard]] Status check_export_target(const std::filesystem::path& directory, ExportKind kind);

}  // namespace tidemill::launcher
