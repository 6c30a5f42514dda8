// SPDX-License-Identifier: Apache-2.0
#include "launcher/models/model_path.hpp"

#include <filesystem>

namespace tidemill::launcher {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Says where the weights of the run in `directory` are.
std::string weights_of_run(const std::filesystem::path& directory) {
  const std::filesystem::path exported = directory / "export";
  if (is_there(exported / "config.json")) {
    return "its model is in " + exported.string();
  }
  if (is_there(exported / "adapter")) {
    return "give the model that it started from, with --adapter " + (exported / "adapter").string();
  }
  return "it has exported no weights; write them with: tidemill export " + directory.string() +
         " DIR";
}

}  // namespace

Status check_model_path(const std::string& model) {
  const std::filesystem::path path = model;
  if (is_there(path / "run.yaml")) {
    return invalid_argument(model + ": is a run, not a model; " + weights_of_run(path));
  }
  if (is_there(path / "adapter_config.json") && !is_there(path / "config.json")) {
    return invalid_argument(model + ": is an adapter, not a model; give the model that it was " +
                            "trained over, with --adapter " + model);
  }
  if (is_there(path)) {
    return {};
  }
  const std::filesystem::path named = "runs" / path;
  if (!model.empty() && is_there(named / "run.yaml")) {
    return Status(Errc::kNotFound,
                  model + ": no such model; for the run of this name, " + weights_of_run(named));
  }
  return Status(Errc::kNotFound,
                model +
                    ": no such folder or GGUF file; models are read from disk, not fetched by "
                    "name");
}

}  // namespace tidemill::launcher
