// SPDX-License-Identifier: Apache-2.0
#include "configs/load.hpp"

#include <filesystem>
#include <system_error>

#include "base/files/file.hpp"
#include "configs/yaml_tree.hpp"

namespace tidemill::configs {
namespace {

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return Status(Errc::kNotFound, path + ": no such file");
  }
  if (std::filesystem::is_directory(status)) {
    return invalid_argument(path +
                            ": is a folder, not a YAML file; a file names its model's folder "
                            "as model.path");
  }
  if (!std::filesystem::is_regular_file(status)) {  // reading a pipe could block forever
    return invalid_argument(path + ": is not a file");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  // One byte more than the limit, so that the parser notices a file that is too large.
  return file.read_prefix(kMaxYamlBytes + 1);
}

}  // namespace

Result<Resolved<RunConfig>> load_run_config(const Schema<RunConfig>& schema,
                                            const std::string& path,
                                            std::span<const Override> overrides) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return read_run_config(schema, text, path, overrides);
}

Result<Resolved<RunConfig>> read_run_config(const Schema<RunConfig>& schema, std::string_view text,
                                            const std::string& source,
                                            std::span<const Override> overrides) {
  TIDEMILL_ASSIGN_OR_RETURN(ConfigNode root, parse_yaml(text, source));
  if (root.kind == ConfigNode::Kind::kMap) {  // the schema refuses anything else
    TIDEMILL_RETURN_IF_ERROR(apply_overrides(overrides, root));
  }
  return schema.read(root);
}

std::string resolved_text(const Schema<RunConfig>& schema, const RunConfig& config) {
  return to_block_text(schema.print(config));
}

std::string default_run_name(const std::string& path) {
  std::string name = std::filesystem::path(path).stem().string().substr(0, 100);
  for (char& c : name) {
    if (!workflows::is_run_name(std::string("x") + c)) {
      c = '-';
    }
  }
  // A name that starts with a dash would look like an option.
  name.erase(0, name.find_first_not_of('-'));
  return workflows::is_run_name(name) ? name : "run" + name;
}

}  // namespace tidemill::configs
