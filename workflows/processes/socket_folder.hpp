// SPDX-License-Identifier: Apache-2.0
// The sockets in the folder of a run, at which other processes of this host reach it. It exists
// while the run is in progress, and after a kill until the next start.
#pragma once

#include <filesystem>
#include <string>

namespace tidemill::workflows {

/// Its name in the folder of the run.
inline constexpr const char* kSocketFolder = "sockets";

/// Returns the path of the socket `name` of the run in `run`.
[[nodiscard]] std::filesystem::path socket_path(const std::filesystem::path& run,
                                                const std::string& name);
/// Makes the folder of the sockets, which only this user may enter. If it cannot, opening a socket
/// fails with the reason.
void make_socket_folder(const std::filesystem::path& run);
/// Removes the folder, with the sockets that an earlier process of the run has left when it was
/// killed. Requires that no process of the run is in progress.
void remove_socket_folder(const std::filesystem::path& run);

}  // namespace tidemill::workflows
