// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/socket_folder.hpp"

#include <system_error>

namespace tidemill::workflows {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& run) {
  return run / kSocketFolder;
}

}  // namespace

std::filesystem::path socket_path(const std::filesystem::path& run, const std::string& name) {
  return folder_of(run) / name;
}

void make_socket_folder(const std::filesystem::path& run) {
  std::error_code ignored;
  std::filesystem::create_directory(folder_of(run), ignored);
  std::filesystem::permissions(folder_of(run), std::filesystem::perms::owner_all, ignored);
}

void remove_socket_folder(const std::filesystem::path& run) {
  std::error_code ignored;
  std::filesystem::remove_all(folder_of(run), ignored);
}

}  // namespace tidemill::workflows
