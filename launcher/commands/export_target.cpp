// SPDX-License-Identifier: Apache-2.0
#include "launcher/commands/export_target.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::launcher {
namespace {

// The prefix of temporary files that a killed process left. The next export removes them.
constexpr std::string_view kTemporaryPrefix = ".tmp-";

// Names the origin of an export.
constexpr const char* kMarkFile = ".tidemill-export";

bool is_ours(const std::string& name) {
  return name == kMarkFile || name.starts_with(kTemporaryPrefix);
}

}  // namespace

Status check_export_target(const ExportTarget& target) {
  const std::filesystem::path& directory = target.directory;
  std::error_code ignored;
  const auto type = std::filesystem::status(directory, ignored).type();
  if (type == std::filesystem::file_type::not_found) {
    const std::filesystem::path whole = std::filesystem::absolute(directory, ignored);
    const std::filesystem::path parent =
        (whole.has_filename() ? whole : whole.parent_path()).parent_path();
    return std::filesystem::is_directory(parent, ignored)
               ? Status()
               : Status(Errc::kNotFound, directory.string() + ": its parent folder " +
                                             parent.string() + " does not exist");
  }
  if (type != std::filesystem::file_type::directory) {
    return invalid_argument(directory.string() + ": not a directory");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(directory));
  constexpr std::uint64_t kMaxMarkBytes = 64U << 10U;
  const auto mark = read_text_file(directory / kMarkFile, kMaxMarkBytes);
  if (target.replace == Replace::kAnyExport || std::all_of(names.begin(), names.end(), is_ours) ||
      (mark.ok() && mark.value() == target.origin + '\n')) {
    return {};
  }
  return invalid_argument(directory.string() + ": is not empty and holds no earlier export of " +
                          target.origin +
                          "; name another directory, or replace its files with "
                          "--force");
}

Status mark_export_target(FileSystem& files, const ExportTarget& target) {
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, target.directory));
  return write_file(files, target.directory / kMarkFile, target.origin + '\n');
}

Status check_export_kind(const std::filesystem::path& directory, ExportKind kind) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored)) {
    return {};
  }
  const bool model = kind == ExportKind::kModel;
  const std::span<const std::string_view> ours =
      model ? engines::exported_model_names() : engines::exported_adapter_names();
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(directory));
  for (const std::string& name : names) {
    if (!is_ours(name) && std::find(ours.begin(), ours.end(), name) == ours.end()) {
      return invalid_argument(directory.string() + ": contains " + name +
                              ", which is not part of an exported " +
                              (model ? "model" : "adapter") + "; name another directory");
    }
  }
  return {};
}

}  // namespace tidemill::launcher
