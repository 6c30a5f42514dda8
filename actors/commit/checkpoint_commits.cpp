// SPDX-License-Identifier: Apache-2.0
#include "actors/commit/checkpoint_commits.hpp"

#include <utility>

#include "actors/recorder/metrics_events.hpp"
#include "storage/run_files/commit_meta.hpp"

namespace tidemill::actors {
namespace {

const TensorMap& trained_tensors(const engines::Snapshot& weights) {
  return weights.adapter_digest.empty() ? weights.base : weights.adapter;
}

storage::CommitMeta meta_of(const RunCommit& commit, const RunInputs& inputs,
                            const std::string& config) {
  storage::CommitMeta meta;
  meta.config = config;
  meta.model = inputs.model;
  meta.random_weights = inputs.random_weights;
  meta.data_digest = inputs.data_digest;
  meta.tokenizer_digest = inputs.tokenizer_digest;
  meta.version = commit.weights.version;
  meta.base_digest = commit.weights.base_digest;
  meta.adapter_digest = commit.weights.adapter_digest;
  meta.records = commit.records;
  meta.evaluated_step = commit.evaluated_step;
  meta.data_position = commit.data_position;
  if (commit.best.has_value()) {
    const BestSoFar& best = *commit.best;
    meta.best = storage::BestMeta{best.value, best.step, best.num_worse, best.weights.base_digest,
                                  best.weights.adapter_digest};
  }
  return meta;
}

void take_meta(const storage::CommitMeta& meta, RunCommit& commit) {
  commit.weights.version = meta.version;
  commit.weights.base_digest = meta.base_digest;
  commit.weights.adapter_digest = meta.adapter_digest;
  commit.records = meta.records;
  commit.evaluated_step = meta.evaluated_step;
  commit.data_position = meta.data_position;
  commit.data_digest = meta.data_digest;
  commit.tokenizer_digest = meta.tokenizer_digest;
  if (meta.best.has_value()) {
    BestSoFar best{meta.best->value, meta.best->step, meta.best->num_worse, {}};
    best.weights.version.step = best.step;
    best.weights.base_digest = meta.best->base_digest;
    best.weights.adapter_digest = meta.best->adapter_digest;
    commit.best = std::move(best);
  }
}

class CheckpointCommits final : public CommitStore {
public:
  CheckpointCommits(std::shared_ptr<storage::CheckpointStore> store,
                    std::filesystem::path record_directory, std::string config)
      : store_(std::move(store)),
        record_directory_(std::move(record_directory)),
        config_(std::move(config)) {}

  void set_inputs(const RunInputs& inputs) override { inputs_ = inputs; }

  std::optional<std::uint64_t> last_step() const override {
    const auto& last = store_->last();
    if (!last.has_value()) {
      return std::nullopt;
    }
    return last->step;
  }

  Status save(const RunCommit& commit) override {
    if (!record_directory_.empty()) {
      TIDEMILL_RETURN_IF_ERROR(storage::check_record_sizes(record_directory_, commit.records));
    }
    return store_->commit(to_checkpoint(commit, inputs_, config_)).status();
  }

  Result<std::optional<RunCommit>> load() override {
    if (!store_->last().has_value()) {
      return std::optional<RunCommit>();
    }
    TIDEMILL_ASSIGN_OR_RETURN(const storage::Checkpoint checkpoint, store_->load_last());
    TIDEMILL_ASSIGN_OR_RETURN(RunCommit commit, from_checkpoint(checkpoint));
    // The config determines the scale of the adapter's matrices and the modules that they belong
    // to.
    const auto adapter = checkpoint.blobs.find(kAdapterConfigPart);
    if (!inputs_.adapter_config.empty() && adapter != checkpoint.blobs.end() &&
        adapter->second != inputs_.adapter_config) {
      return invalid_argument("train.adapter: not the adapter that the run was started with");
    }
    if (!inputs_.data_digest.empty() && commit.data_digest != inputs_.data_digest) {
      return invalid_argument("data.train: " + inputs_.data_files +
                              (inputs_.data_files.empty() ? "" : ": ") +
                              "not the data that the run was started with");
    }
    if (!inputs_.tokenizer_digest.empty() && !commit.tokenizer_digest.empty() &&
        commit.tokenizer_digest != inputs_.tokenizer_digest) {
      return invalid_argument(
          "model.path: the tokenizer or the chat template is not the one that the run was started "
          "with");
    }
    return std::optional<RunCommit>(std::move(commit));
  }

private:
  std::shared_ptr<storage::CheckpointStore> store_;
  std::filesystem::path record_directory_;
  std::string config_;
  RunInputs inputs_;
};

}  // namespace

storage::Checkpoint to_checkpoint(const RunCommit& commit, const RunInputs& inputs,
                                  const std::string& config) {
  storage::Checkpoint checkpoint;
  checkpoint.step = commit.weights.version.step;
  checkpoint.tensors[kWeightsPart] = trained_tensors(commit.weights);
  if (commit.best.has_value() && !trained_tensors(commit.best->weights).empty()) {
    checkpoint.tensors[kBestPart] = trained_tensors(commit.best->weights);
  }
  checkpoint.tensors[kOptimizerPart] = commit.optimizer;
  const auto bytes = commit.stream.bytes.as<char>();
  checkpoint.blobs[kStreamPart] = std::string(bytes.begin(), bytes.end());
  checkpoint.blobs[kMetaPart] = storage::write_commit_meta(meta_of(commit, inputs, config));
  if (!inputs.adapter_config.empty()) {
    checkpoint.blobs[kAdapterConfigPart] = inputs.adapter_config;
  }
  return checkpoint;
}

Result<RunCommit> from_checkpoint(const storage::Checkpoint& checkpoint) {
  RunCommit commit;
  for (const char* part : {kWeightsPart, kOptimizerPart}) {
    if (!checkpoint.tensors.contains(part)) {
      return corrupt_data(std::string("commit: no part \"") + part + "\"");
    }
  }
  for (const char* part : {kStreamPart, kMetaPart}) {
    if (!checkpoint.blobs.contains(part)) {
      return corrupt_data(std::string("commit: no part \"") + part + "\"");
    }
  }
  const auto meta = storage::parse_commit_meta(checkpoint.blobs.at(kMetaPart), kMetaPart);
  if (!meta.ok()) {
    return corrupt_data("commit: " + meta.status().message());
  }
  take_meta(meta.value(), commit);
  const bool adapter = !commit.weights.adapter_digest.empty();
  (adapter ? commit.weights.adapter : commit.weights.base) = checkpoint.tensors.at(kWeightsPart);
  if (const auto best = checkpoint.tensors.find(kBestPart); best != checkpoint.tensors.end()) {
    if (!commit.best.has_value()) {
      return corrupt_data(std::string("commit: part \"") + kBestPart + "\" has no entry in " +
                          kMetaPart);
    }
    engines::Snapshot& weights = commit.best->weights;
    (weights.adapter_digest.empty() ? weights.base : weights.adapter) = best->second;
  }
  commit.optimizer = checkpoint.tensors.at(kOptimizerPart);
  commit.stream.bytes = Buffer::copy_of(std::as_bytes(std::span(checkpoint.blobs.at(kStreamPart))));
  return commit;
}

std::shared_ptr<CommitStore> make_checkpoint_commits(
    std::shared_ptr<storage::CheckpointStore> store, std::filesystem::path record_directory,
    std::string config) {
  return std::make_shared<CheckpointCommits>(std::move(store), std::move(record_directory),
                                             std::move(config));
}

Result<storage::RemainingRecords> accept_lost_records(
    storage::CheckpointStore& store, FileSystem& files,
    const std::filesystem::path& record_directory) {
  TIDEMILL_ASSIGN_OR_RETURN(storage::Checkpoint checkpoint, store.load_last());
  std::string& part = checkpoint.blobs[kMetaPart];
  auto meta = storage::parse_commit_meta(part, kMetaPart);
  if (!meta.ok()) {
    return corrupt_data("commit: " + meta.status().message());
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      const storage::RemainingRecords left,
      storage::keep_readable_records(files, record_directory, meta.value().records,
                                     meta.value().version.step));
  if (left.dropped_metrics > 0) {
    // Its records no longer belong to the lines one to one. A resumed run writes it again.
    const Status removed = remove_file(files, record_directory / kEventFileName);
    if (!removed.ok() && removed.code() != Errc::kNotFound) {
      return removed;
    }
  }
  meta.value().records = left.marks;
  part = storage::write_commit_meta(meta.value());
  TIDEMILL_RETURN_IF_ERROR(store.commit(checkpoint).status());
  return left;
}

}  // namespace tidemill::actors
