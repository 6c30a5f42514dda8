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

}  // namespace

Status check_export_target(const std::filesystem::path& directory, ExportKind kind) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored)) {
    return {};
  }
  const bool model = kind == ExportKind::kModel;
  const std::span<const std::string_view> ours =
      model ? engines::exported_model_names() : engines::exported_adapter_names();
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(directory));
  for (const std::string& name : names) {
    if (!name.starts_with(kTemporaryPrefix) &&
        std::find(ours.begin(), ours.end(), name) == ours.end()) {
      return invalid_argument(directory.string() + ": contains " + name +
                              ", which is not part of an exported " +
                              (model ? "model" : "adapter") + "; name another directory");
    }
  }
  return {};
}

}  // namespace tidemill::launcher
