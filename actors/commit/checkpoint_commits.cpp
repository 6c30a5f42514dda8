// SPDX-License-Identifier: Apache-2.0
#include "actors/commit/checkpoint_commits.hpp"

#include <utility>

#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::actors {
namespace {

constexpr std::int64_t kFormat = 1;

std::int64_t to_integer(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

const TensorMap& trained_tensors(const engines::Snapshot& weights) {
  return weights.adapter_digest.empty() ? weights.base : weights.adapter;
}

std::string meta_text(const RunCommit& commit, const RunInputs& inputs) {
  const PolicyVersion& version = commit.weights.version;
  Json::Object meta{{"format", kFormat},
                    {"model", inputs.model},
                    {"random_weights", inputs.random_weights},
                    {"data_digest", inputs.data_digest},
                    {"line", to_integer(version.line)},
                    {"incarnation", to_integer(version.incarnation)},
                    {"step", to_integer(version.step)},
                    {"base_digest", commit.weights.base_digest},
                    {"adapter_digest", commit.weights.adapter_digest},
                    {"adapter", !commit.weights.adapter_digest.empty()},
                    {"metrics_bytes", to_integer(commit.records.metrics_bytes)},
                    {"samples_bytes", to_integer(commit.records.samples_bytes)},
                    {"evaluated_step", to_integer(commit.evaluated_step)},
                    {"data_position", to_integer(commit.data_position)}};
  if (commit.best.has_value()) {
    const BestSoFar& best = *commit.best;
    meta.push_back({"best", Json::Object{{"value", best.value},
                                         {"step", to_integer(best.step)},
                                         {"num_worse", to_integer(best.num_worse)},
                                         {"base_digest", best.weights.base_digest},
                                         {"adapter_digest", best.weights.adapter_digest}}});
  }
  return Json(std::move(meta)).to_text();
}

Result<BestSoFar> read_best(const Json& json) {
  BestSoFar best;
  JsonFields fields(json, kMetaPart, "best.");
  best.value = fields.required_real("value", {});
  best.step = static_cast<std::uint64_t>(fields.required_integer("step", {0}));
  best.num_worse = static_cast<std::uint32_t>(fields.required_integer("num_worse", {0, 1 << 30}));
  best.weights.version.step = best.step;
  best.weights.base_digest = fields.string("base_digest").value_or("");
  best.weights.adapter_digest = fields.string("adapter_digest").value_or("");
  TIDEMILL_RETURN_IF_ERROR(fields.status());
  return best;
}

Status read_meta(const std::string& text, RunCommit& commit) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, parse_json(text));
  JsonFields fields(json, kMetaPart);
  const std::int64_t format = fields.required_integer("format", {1});
  if (fields.status().ok() && format != kFormat) {
    return corrupt_data(std::string(kMetaPart) + ": format " + std::to_string(format) +
                        "; this program reads format " + std::to_string(kFormat));
  }
  const auto count = [&fields](const char* name) {
    return static_cast<std::uint64_t>(fields.required_integer(name, {0}));
  };
  PolicyVersion& version = commit.weights.version;
  version.line = static_cast<std::uint32_t>(fields.required_integer("line", {0, 1 << 30}));
  version.incarnation =
      static_cast<std::uint32_t>(fields.required_integer("incarnation", {0, 1 << 30}));
  version.step = count("step");
  commit.weights.base_digest = fields.string("base_digest").value_or("");
  commit.weights.adapter_digest = fields.string("adapter_digest").value_or("");
  commit.records.metrics_bytes = count("metrics_bytes");
  commit.records.samples_bytes = count("samples_bytes");
  commit.evaluated_step =
      static_cast<std::uint64_t>(fields.integer("evaluated_step", {0}).value_or(0));
  commit.data_position = count("data_position");
  commit.data_digest = fields.string("data_digest").value_or("");
  if (const Json* best = fields.find("best"); best != nullptr) {
    TIDEMILL_ASSIGN_OR_RETURN(commit.best, read_best(*best));
  }
  return fields.status();
}

class CheckpointCommits final : public CommitStore {
public:
  explicit CheckpointCommits(std::shared_ptr<storage::CheckpointStore> store)
      : store_(std::move(store)) {}

  void set_inputs(const RunInputs& inputs) override { inputs_ = inputs; }

  Status save(const RunCommit& commit) override {
    return store_->commit(to_checkpoint(commit, inputs_)).status();
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
      return invalid_argument("data.train: not the data that the run was started with");
    }
    return std::optional<RunCommit>(std::move(commit));
  }

private:
  std::shared_ptr<storage::CheckpointStore> store_;
  RunInputs inputs_;
};

}  // namespace

storage::Checkpoint to_checkpoint(const RunCommit& commit, const RunInputs& inputs) {
  storage::Checkpoint checkpoint;
  checkpoint.step = commit.weights.version.step;
  checkpoint.tensors[kWeightsPart] = trained_tensors(commit.weights);
  if (commit.best.has_value() && !trained_tensors(commit.best->weights).empty()) {
    checkpoint.tensors[kBestPart] = trained_tensors(commit.best->weights);
  }
  checkpoint.tensors[kOptimizerPart] = commit.optimizer;
  const auto bytes = commit.stream.bytes.as<char>();
  checkpoint.blobs[kStreamPart] = std::string(bytes.begin(), bytes.end());
  checkpoint.blobs[kMetaPart] = meta_text(commit, inputs);
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
  const Status meta = read_meta(checkpoint.blobs.at(kMetaPart), commit);
  if (!meta.ok()) {
    return corrupt_data("commit: " + meta.message());
  }
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
    std::shared_ptr<storage::CheckpointStore> store) {
  return std::make_shared<CheckpointCommits>(std::move(store));
}

}  // namespace tidemill::actors
