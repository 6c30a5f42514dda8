// SPDX-License-Identifier: Apache-2.0
// `tidemill export`: writes the weights of a run, or of an adapter merged into its base, as a
// directory that other programs can load.
#include <CLI/App.hpp>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/export_target.hpp"
#include "launcher/inspect/run_report.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "storage/run_files/commit_meta.hpp"

namespace tidemill::launcher {
namespace {

using engines::AdapterConfig;
using engines::ModelFiles;
using storage::Checkpoint;
using storage::CommitMeta;

Result<std::string> blob_of(const Checkpoint& commit, const std::string& name,
                            const std::string& location) {
  const auto found = commit.blobs.find(name);
  if (found == commit.blobs.end()) {
    return corrupt_data(location + ": the commit has no " + name);
  }
  return found->second;
}

Result<CommitMeta> read_meta(const Checkpoint& commit, const std::string& location) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text,
                            blob_of(commit, storage::kCommitMetaPart, location));
  const std::string name = location + ": " + storage::kCommitMetaPart;
  auto meta = storage::parse_commit_meta(text, name);
  if (meta.ok() && meta.value().model.empty()) {
    return corrupt_data(name + ": model: is missing");
  }
  return meta;
}

// Reads the last commit of a run, which `path` names as `find_run` does, or the commit whose
// manifest is `path`.
Result<Checkpoint> read_commit(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return storage::read_last_checkpoint(path);
  }
  if (!std::filesystem::exists(path, ignored)) {
    const auto named = find_run(path.string());
    return named.ok() ? storage::read_last_checkpoint(named.value())
                      : Result<Checkpoint>(Status(Errc::kNotFound,
                                                  path.string() + ": no such run or commit; "
                                                                  "tidemill runs lists all runs"));
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  PosixFileSystem files;
  const storage::ObjectFolder objects(files, folder / "objects");
  const storage::CommitFolder commits(folder, objects);
  TIDEMILL_ASSIGN_OR_RETURN(const storage::StoredManifest commit,
                            commits.read(path.filename().string()));
  return commits.load(commit);
}

// Opens the model that a run started from. It has no tensors if the run started from random
// weights.
Result<ModelFiles> open_base(const CommitMeta& meta) {
  if (!meta.random_weights) {
    return engines::open_model(meta.model);
  }
  return engines::open_model_config(meta.model);
}

// Checks that `base` holds the weights that the adapter was trained over.
Status check_base(const CommitMeta& meta, const ModelFiles& base) {
  if (meta.random_weights) {
    return invalid_argument(
        "--merge: the run trained its adapter over random weights, which are "
        "not saved");
  }
  if (digest_tensors(base.tensors) != meta.base_digest) {
    return invalid_argument(meta.model + ": not the model that the run began with");
  }
  return {};
}

// Returns `base` with an adapter merged into it.
Result<ModelFiles> merged(const AdapterConfig& config, const TensorMap& adapter,
                          const ModelFiles& base, const std::string& location) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto modules,
                            engines::resolve_adapter(config, base.config, location));
  const auto spec = engines::adapter_spec(config, modules, base.config);
  if (!spec.ok()) {
    return spec.status().with_context(location);
  }
  auto model = engines::merge_adapter(spec.value(), adapter, base.config, base.tensors);
  if (!model.ok()) {
    return model.status().with_context(location);
  }
  return ModelFiles{std::move(model.value().config), base.generation,
                    std::move(model.value().tensors)};
}

class ExportCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "export"; }
  [[nodiscard]] std::string summary() const override {
    return "Writes a run's weights as a model or adapter directory";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill export runs/quickstart exported-model";
  }

  void declare(CLI::App& app) override {
    app.add_option(
           "SOURCE", source_,
           "A run's directory or its name under runs/ (exports its last commit), the manifest "
           "of a commit, or, with --adapter, a model directory")
        ->required()
        ->type_name("");
    app.add_option(
           "DIR", target_,
           "The directory to write: a new or empty one, or an earlier export of the same kind")
        ->required()
        ->type_name("");
    auto* merge =
        app.add_flag("--merge", merge_, "Merge the adapter into its model and write the model");
    auto* best =
        app.add_flag("--best", best_,
                     "Export the weights of the best evaluation (for runs with eval.keep_best)");
    app.add_option("--adapter", adapter_, "An adapter directory to merge into the model SOURCE")
        ->type_name("DIR")
        ->needs(merge)
        ->excludes(best);
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string kind,
                              adapter_.empty() ? export_commit() : merge_directory());
    if (session.form == OutputForm::kJson) {
      const auto replace = nlohmann::json::error_handler_t::replace;
      session.out << nlohmann::ordered_json{{"path", target_}, {"kind", kind}}.dump(-1, ' ', false,
                                                                                    replace)
                  << '\n';
    } else {
      session.out << target_ << ": " << kind << '\n';
    }
    return {};
  }

private:
  [[nodiscard]] Result<std::string> merge_directory() {
    TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles base, engines::open_model(source_));
    TIDEMILL_ASSIGN_OR_RETURN(const auto adapter, engines::open_adapter(adapter_, base.config));
    TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles model,
                              merged(adapter.config, adapter.tensors, base, adapter_));
    return write_model(model, model.tensors, source_);
  }

  [[nodiscard]] Result<std::string> export_commit() {
    TIDEMILL_ASSIGN_OR_RETURN(const Checkpoint commit, read_commit(source_));
    TIDEMILL_ASSIGN_OR_RETURN(const CommitMeta meta, read_meta(commit, source_));
    const auto weights = commit.tensors.find(best_ ? "best" : "weights");
    if (best_ && weights == commit.tensors.end()) {
      return invalid_argument(
          "--best: " + source_ +
          " has no best weights: eval.keep_best is off, or nothing was evaluated yet");
    }
    if (weights == commit.tensors.end()) {
      return corrupt_data(source_ + ": the commit has no weights");
    }
    TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles base, open_base(meta));
    if (meta.adapter_digest.empty()) {
      if (merge_) {
        return invalid_argument("--merge: " + source_ + " trained no adapter");
      }
      return write_model(base, weights->second, meta.model);
    }
    const std::string location = source_ + ": adapter_config.json";
    TIDEMILL_ASSIGN_OR_RETURN(const std::string text,
                              blob_of(commit, "adapter_config.json", source_));
    TIDEMILL_ASSIGN_OR_RETURN(const AdapterConfig config,
                              engines::parse_adapter_config(text, location));
    if (merge_) {
      TIDEMILL_RETURN_IF_ERROR(check_base(meta, base));
      TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles model,
                                merged(config, weights->second, base, location));
      return write_model(model, model.tensors, meta.model);
    }
    TIDEMILL_RETURN_IF_ERROR(check_export_target(target_, ExportKind::kAdapter));
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(
        engines::write_adapter(files, target_, config, base.config, weights->second));
    return std::string("adapter");
  }

  [[nodiscard]] Result<std::string> write_model(const ModelFiles& base, const TensorMap& weights,
                                                const std::string& source) const {
    // The tensors of the base are mapped from the files that the export would replace.
    std::error_code ignored;
    if (std::filesystem::equivalent(source, target_, ignored)) {
      return invalid_argument(target_ + ": is the base model itself; name another directory");
    }
    TIDEMILL_RETURN_IF_ERROR(check_export_target(target_, ExportKind::kModel));
    // A run may hold weights in a wider type than their file.
    const TensorMap tensors = with_types_of(weights, base.tensors);
    TIDEMILL_RETURN_IF_ERROR(engines::check_tensors(engines::expected_tensors(base.config), tensors,
                                                    source_ + ": weights"));
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(engines::export_model(files, target_, base.config, tensors, source));
    return std::string("model");
  }

  std::string source_;
  std::string target_;
  std::string adapter_;
  bool merge_ = false;
  bool best_ = false;
};

}  // namespace

std::unique_ptr<Command> make_export_command() {
  return std::make_unique<ExportCommand>();
}

}  // namespace tidemill::launcher
