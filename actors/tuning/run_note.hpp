// SPDX-License-Identifier: Apache-2.0
// Notes in the directory of a job's run how far it has come and how it has ended.
#pragma once

#include <filesystem>

#include "base/files/file.hpp"
#include "storage/run_files/run_state.hpp"

namespace tidemill::actors {

/// Writes the note that `tidemill show` and `tidemill runs` read, atomically. Errors: as
/// `storage::write_run_state`.
[[nodiscard]] Status write_run_note(FileSystem& files, const std::filesystem::path& directory,
                                    const storage::RunStateNote& note);

}  // namespace tidemill::actors
