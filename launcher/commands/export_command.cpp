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
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/export_target.hpp"
#include "launcher/inspect/run_report.hpp"
#include "launcher/runs/run_directory.hpp"
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

// What is exported: the last commit of a run, or a commit of it.
struct Source {
  std::filesystem::path run;
  std::string manifest;  // the file name of a commit's manifest; empty: the last commit
};

// Finds the run that `source` names as in all commands (`find_run`), or else the commit whose
// manifest is the file `source`.
Result<Source> find_source(const std::string& source) {
  auto run = find_run(source);
  if (run.ok()) {
    return Source{std::move(run).value(), ""};
  }
  const std::filesystem::path path = source;
  std::error_code ignored;
  if (source.empty() || std::filesystem::is_directory(path, ignored)) {
    return run.status();
  }
  if (!std::filesystem::exists(path, ignored)) {
    return Status(Errc::kNotFound,
                  source + ": no such run or commit; tidemill runs lists all runs");
  }
  const std::filesystem::path whole = absolute_path(path);
  return Source{whole.parent_path().parent_path(), whole.filename().string()};
}

Result<Checkpoint> read_commit(const Source& source, const std::string& path) {
  if (source.manifest.empty()) {
    return storage::read_last_checkpoint(source.run);
  }
  PosixFileSystem files;
  const std::filesystem::path given = path;
  const std::filesystem::path folder = given.has_parent_path() ? given.parent_path() : ".";
  const storage::ObjectFolder objects(files, folder / "objects");
  const storage::CommitFolder commits(folder, objects);
  TIDEMILL_ASSIGN_OR_RETURN(const storage::StoredManifest commit, commits.read(source.manifest));
  return commits.load(commit);
}

// Returns what tells exports of this run from those of others: its id, which a renamed run keeps,
// and when it began.
std::string origin_of(const Source& source) {
  PosixFileSystem files;
  const std::filesystem::path folder = source.run / "checkpoints";
  const storage::ObjectFolder objects(files, folder / "objects");
  const auto run_id = storage::CommitFolder(folder, objects).read_run_id();
  const auto started = read_started(source.run);
  return "run " + (run_id.ok() && !run_id.value().empty() ? run_id.value() : source.run.string()) +
         (started.ok() ? ", begun " + started.value() : "");
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

// Checks that the model that the run started from still has its tokenizer, which is copied from
// there. A run on token ids needs none.
Status check_tokenizer(const CommitMeta& meta) {
  if (meta.tokenizer_digest.empty()) {
    return {};
  }
  const auto tokenizer = engines::Tokenizer::load(meta.model);
  return tokenizer.ok() ? Status()
                        : Status(tokenizer.status().code(),
                                 tokenizer.status().message() +
                                     "; an export copies the tokenizer of the model that the run "
                                     "started from");
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
    app.add_option("DIR", target_,
                   "The directory to write: a new or empty one, or an earlier export of SOURCE")
        ->required()
        ->type_name("");
    auto* merge =
        app.add_flag("--merge", merge_, "Merge the adapter into its model and write the model");
    auto* best =
        app.add_flag("--best", best_,
                     "Export the weights of the best evaluation (for runs with eval.keep_best)");
    app.add_flag("--force", force_,
                 "Replace a model or an adapter in DIR that is not an earlier export of SOURCE");
    app.add_option("--adapter", adapter_, "An adapter directory to merge into the model SOURCE")
        ->type_name("DIR")
        ->needs(merge)
        ->excludes(best);
  }

  [[nodiscard]] Status run(Session& session) override {
    if (target_.empty()) {
      return invalid_argument("DIR: is empty; name the directory to write");
    }
    std::error_code ignored;
    const bool was_there = std::filesystem::exists(target_, ignored);
    const auto exported = adapter_.empty() ? export_commit() : merge_directory();
    if (!exported.ok()) {
      if (begun_ && !was_there) {
        std::filesystem::remove_all(target_, ignored);  // a part of a model is of no use
      }
      return exported.status();
    }
    const std::string& kind = exported.value();
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
  // Checks the target before anything is read, since models are large.
  [[nodiscard]] Status check_target(const std::string& origin) {
    const Replace replace = force_ ? Replace::kAnyExport : Replace::kOwnExports;
    export_ = {target_, origin, replace};
    return check_export_target(export_);
  }

  // Begins to write.
  [[nodiscard]] Status begin(ExportKind kind) {
    TIDEMILL_RETURN_IF_ERROR(check_export_kind(target_, kind));
    PosixFileSystem files;
    begun_ = true;
    return mark_export_target(files, export_);
  }

  [[nodiscard]] Result<std::string> merge_directory() {
    TIDEMILL_RETURN_IF_ERROR(check_target("model " + source_ + " with adapter " + adapter_));
    TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles base, engines::open_model(source_));
    TIDEMILL_ASSIGN_OR_RETURN(const auto adapter, engines::open_adapter(adapter_, base.config));
    TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles model,
                              merged(adapter.config, adapter.tensors, base, adapter_));
    return write_model(model, model.tensors, source_);
  }

  [[nodiscard]] Result<std::string> export_commit() {
    TIDEMILL_ASSIGN_OR_RETURN(const Source source, find_source(source_));
    TIDEMILL_RETURN_IF_ERROR(check_target(origin_of(source)));
    TIDEMILL_ASSIGN_OR_RETURN(const Checkpoint commit, read_commit(source, source_));
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
      TIDEMILL_RETURN_IF_ERROR(check_tokenizer(meta));
      return write_model(base, weights->second, meta.model);
    }
    const std::string location = source_ + ": adapter_config.json";
    TIDEMILL_ASSIGN_OR_RETURN(const std::string text,
                              blob_of(commit, "adapter_config.json", source_));
    TIDEMILL_ASSIGN_OR_RETURN(const AdapterConfig config,
                              engines::parse_adapter_config(text, location));
    if (merge_) {
      TIDEMILL_RETURN_IF_ERROR(check_base(meta, base));
      TIDEMILL_RETURN_IF_ERROR(check_tokenizer(meta));
      TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles model,
                                merged(config, weights->second, base, location));
      return write_model(model, model.tensors, meta.model);
    }
    TIDEMILL_RETURN_IF_ERROR(begin(ExportKind::kAdapter));
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(
        engines::write_adapter(files, target_, config, base.config, weights->second));
    return std::string("adapter");
  }

  [[nodiscard]] Result<std::string> write_model(const ModelFiles& base, const TensorMap& weights,
                                                const std::string& source) {
    // The tensors of the base are mapped from the files that the export would replace.
    std::error_code ignored;
    if (std::filesystem::equivalent(source, target_, ignored)) {
      return invalid_argument(target_ + ": is the base model itself; name another directory");
    }
    // A run may hold weights in a wider type than their file.
    const TensorMap tensors = with_types_of(weights, base.tensors);
    TIDEMILL_RETURN_IF_ERROR(engines::check_tensors(engines::expected_tensors(base.config), tensors,
                                                    source_ + ": weights"));
    TIDEMILL_RETURN_IF_ERROR(begin(ExportKind::kModel));
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(engines::export_model(files, target_, base.config, tensors, source));
    return std::string("model");
  }

  std::string source_;
  std::string target_;
  std::string adapter_;
  bool merge_ = false;
  bool best_ = false;
  bool force_ = false;
  ExportTarget export_;
  bool begun_ = false;  // to write
};

}  // namespace

std::unique_ptr<Command> make_export_command() {
  return std::make_unique<ExportCommand>();
}

}  // namespace tidemill::launcher
