// SPDX-License-Identifier: Apache-2.0
#include "actors/tuning/run_note.hpp"

namespace tidemill::actors {

Status write_run_note(FileSystem& files, const std::filesystem::path& directory,
                      const storage::RunStateNote& note) {
  return storage::write_run_state(files, directory, note);
}

}  // namespace tidemill::actors
