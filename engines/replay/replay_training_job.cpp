// SPDX-License-Identifier: Apache-2.0
// A trainer by hash: its weights are the digest of everything they were trained on, in order.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/digest.hpp"
#include "engines/replay/factory.hpp"
#include "engines/replay/replay_tokens.hpp"

namespace tidemill::engines {
namespace {

constexpr const char* kWeightName = "weights";

TensorMap weights_of(const std::string& chain) {
  Tensor tensor;
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<std::int64_t>(chain.size())};
  tensor.data = Buffer::copy_of(std::as_bytes(std::span(chain)));
  TensorMap tensors;
  tensors.emplace(kWeightName, std::move(tensor));
  return tensors;
}

Result<std::string> chain_of(const Snapshot& snapshot) {
  const auto it = snapshot.base.find(kWeightName);
  if (it == snapshot.base.end() || digest_tensors(snapshot.base) != snapshot.base_digest) {
    return corrupt_data("snapshot " + to_string(snapshot.version) + ": digest does not match");
  }
  const auto bytes = it->second.data.as<char>();
  return std::string(bytes.begin(), bytes.end());
}

template <class T>
void hash_values(DigestHasher& hasher, const std::vector<T>& values) {
  const std::uint64_t size = values.size();
  hasher.update(std::as_bytes(std::span(&size, 1)));
  hasher.update(std::as_bytes(std::span(values)));
}

class ReplayTrainingJob final : public TrainingJob {
public:
  ReplayTrainingJob(const ReplayOptions& options, const Snapshot& initial)
      : options_(options), chain_(chain_of(initial).value()), weight_digest_(initial.base_digest) {}

  using TrainingJob::optim_step;

  Status forward(TrainBatch batch) override { return begin_batch(std::move(batch), false); }

  Status forward_backward(TrainBatch batch, TokenLoss& /*loss*/) override {
    return begin_batch(std::move(batch), true);
  }

  bool has_work() const override { return stepped_ < batch_.size(); }

  Result<StepReport> advance(const StepBudget& budget) override {
    StepReport report;
    auto it = std::next(batch_.begin(), static_cast<std::ptrdiff_t>(stepped_));
    while (it != batch_.end() && report.train_tokens < budget.tokens) {
      report.train_tokens += static_cast<std::int64_t>(it->second.ids.size());
      ++stepped_;
      ++it;
    }
    report.virtual_duration = options_.train_time_per_token * report.train_tokens;
    report.more = has_work();
    return report;
  }

  Result<std::vector<float>> logprobs(SampleId id) const override {
    const auto it = batch_.find(id);
    if (it == batch_.end()) {
      return Status(Errc::kNotFound, "not in the batch sample_id=" + std::to_string(id.value));
    }
    return logprobs_under(weight_digest_, it->second);
  }

  Result<std::vector<std::vector<float>>> score(const Snapshot& weights,
                                                std::span<const TrainSequence> sequences,
                                                float /*temperature*/) override {
    std::vector<std::vector<float>> all;
    for (const TrainSequence& sequence : sequences) {
      all.push_back(logprobs_under(weights.base_digest, sequence));
    }
    return all;
  }

  Status optim_step(const OptimStep& /*step*/) override {
    if (!has_gradients_) {
      return invalid_argument("there are no gradients for an optimizer step");
    }
    DigestHasher hasher;
    hasher.update(std::as_bytes(std::span(chain_)));
    hasher.update(std::as_bytes(std::span(&optimizer_step_, 1)));
    for (const TrainSequence& sequence : trained_) {
      hasher.update(std::as_bytes(std::span(&sequence.id.value, 1)));
      hash_values(hasher, sequence.ids);
      hash_values(hasher, sequence.response_mask);
      hash_values(hasher, sequence.advantages);
      hash_values(hasher, sequence.behavior_logprobs);
    }
    chain_ = hasher.digest();
    last_update_ = {};
    last_update_.optimizer_step = ++optimizer_step_;
    cancel();
    return {};
  }

  void cancel() override {
    has_gradients_ = false;
    trained_.clear();
    batch_.clear();
    stepped_ = 0;
  }

  Status save(PolicyVersion version) override {
    saved_ = {};
    saved_.version = version;
    saved_.base = weights_of(chain_);
    saved_.base_digest = digest_tensors(saved_.base);
    weight_digest_ = saved_.base_digest;
    return {};
  }

  const UpdateReport& last_update() const override { return last_update_; }
  Snapshot take_snapshot() override { return std::move(saved_); }

  Status capture() override {
    Tensor steps;
    steps.dtype = DType::kI64;
    steps.shape = {1};
    steps.data = Buffer::adopt(std::vector<std::int64_t>{optimizer_step_}, DType::kI64);
    captured_.clear();
    captured_.emplace("step", std::move(steps));
    return {};
  }
  TensorMap take_optimizer_state() override { return std::move(captured_); }

  Status load(const Snapshot& snapshot, const TensorMap& optimizer_state) override {
    TIDEMILL_ASSIGN_OR_RETURN(chain_, chain_of(snapshot));
    weight_digest_ = snapshot.base_digest;
    const auto it = optimizer_state.find("step");
    if (it == optimizer_state.end() || it->second.data.size_bytes() != sizeof(std::int64_t)) {
      return invalid_argument("optimizer state: no tensor \"step\" of one element");
    }
    optimizer_step_ = it->second.data.as<std::int64_t>()[0];
    return {};
  }

private:
  Status begin_batch(TrainBatch batch, bool trains) {
    batch_.clear();
    stepped_ = 0;
    for (TrainSequence& sequence : batch.sequences) {
      const SampleId id = sequence.id;
      if (!batch_.emplace(id, std::move(sequence)).second) {
        batch_.clear();
        return invalid_argument("two sequences have the same id sample_id=" +
                                std::to_string(id.value));
      }
    }
    for (const auto& [id, sequence] : batch_) {
      if (trains) {
        trained_.push_back(sequence);
      }
    }
    has_gradients_ = has_gradients_ || trains;
    return {};
  }

  static std::vector<float> logprobs_under(const std::string& digest,
                                           const TrainSequence& sequence) {
    const std::uint64_t bits = replay_weight_bits(digest);
    std::vector<float> values(sequence.ids.size(), 0.0F);
    for (std::size_t t = 1; t < values.size(); ++t) {
      if (sequence.response_mask[t] != 0) {
        values[t] = replay_logprob(bits, sequence.ids[t], t);
      }
    }
    return values;
  }

  ReplayOptions options_;
  std::string chain_;
  std::string weight_digest_;  // of the last commit, whose weights sampled the rollouts
  std::int64_t optimizer_step_ = 0;
  bool has_gradients_ = false;
  std::vector<TrainSequence> trained_;  // since the last optimizer step
  std::map<SampleId, TrainSequence> batch_;
  std::size_t stepped_ = 0;
  UpdateReport last_update_;
  Snapshot saved_;
  TensorMap captured_;
};

}  // namespace

Snapshot replay_initial_snapshot(std::uint64_t seed) {
  Snapshot snapshot;
  snapshot.base = weights_of("seed " + std::to_string(seed));
  snapshot.base_digest = digest_tensors(snapshot.base);
  return snapshot;
}

std::unique_ptr<TrainingJob> make_replay_training_job(const ReplayOptions& options,
                                                      const Snapshot& initial) {
  return std::make_unique<ReplayTrainingJob>(options, initial);
}

}  // namespace tidemill::engines
