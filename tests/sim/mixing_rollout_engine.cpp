// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/mixing_rollout_engine.hpp"

#include <algorithm>
#include <list>
#include <span>
#include <string>
#include <utility>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "engines/replay/replay_tokens.hpp"

namespace tidemill::test {
namespace {

using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

class MixingRolloutEngine final : public engines::RolloutEngine {
public:
  MixingRolloutEngine(const engines::ReplayOptions& options, const Snapshot& initial)
      : options_(options),
        version_(initial.version),
        weight_bits_(engines::replay_weight_bits(initial.base_digest)) {}

  Status submit(RolloutRequest request, engines::RolloutSink& sink) override {
    const bool queued = std::any_of(jobs_.begin(), jobs_.end(),
                                    [&](const Job& job) { return job.request.id == request.id; });
    if (queued || request.prompt_ids.empty()) {
      return invalid_argument("sample " + std::to_string(request.id.value));
    }
    const std::uint64_t wanted = 1 + keyed_bits(options_.seed, request.key(), 1U << 20U) % 8;
    const auto most = static_cast<std::uint64_t>(std::max(request.max_new_tokens, 1));
    jobs_.push_back({std::move(request), &sink, {}, std::min(wanted, most)});
    return {};
  }

  void cancel(SampleId id) override {
    const auto job = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const Job& one) { return one.request.id == id; });
    if (job != jobs_.end()) {
      finish(*job, FinishReason::kCancelled);
      jobs_.erase(job);
    }
  }

  Status load(Snapshot snapshot, engines::WeightArrival /*arrival*/) override {
    if (digest_tensors(snapshot.base) != snapshot.base_digest || snapshot.version < version_) {
      return corrupt_data("snapshot " + to_string(snapshot.version));
    }
    version_ = snapshot.version;
    weight_bits_ = engines::replay_weight_bits(snapshot.base_digest);
    return {};
  }

  PolicyVersion serving_version() const override { return version_; }

  bool has_work() const override {
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& job) { return may_run(job); });
  }

  Result<engines::StepReport> step(const engines::StepBudget& /*budget*/) override {
    engines::StepReport report;
    std::int64_t free = options_.slots;
    for (auto job = jobs_.begin(); job != jobs_.end() && free > 0;) {
      if (!may_run(*job)) {
        ++job;
        continue;
      }
      --free;
      ++report.decode_tokens;
      append_token(*job);
      if (job->result.response_ids.size() == job->length) {
        finish(*job, FinishReason::kStop);
        job = jobs_.erase(job);
      } else {
        ++job;
      }
    }
    report.virtual_duration = options_.decode_time;
    report.more = has_work();
    return report;
  }

private:
  struct Job {
    RolloutRequest request;
    engines::RolloutSink* sink;
    RolloutResult result;
    std::uint64_t length;
  };

  [[nodiscard]] bool may_run(const Job& job) const {
    return !job.result.response_ids.empty() || job.request.min_step <= version_.step;
  }

  void append_token(Job& job) const {
    RolloutResult& result = job.result;
    const std::size_t position = result.response_ids.size();
    const std::int32_t token =
        engines::replay_token(job.request.seed, weight_bits_, job.request.key(), position);
    const float logprob =
        engines::replay_logprob(weight_bits_, token, job.request.prompt_ids.size() + position);
    result.response_ids.push_back(token);
    result.behavior_logprobs.push_back(logprob);
    const engines::VersionSpan span{version_, 1};
    job.sink->on_tokens({job.request.id, position, std::span(&token, 1), std::span(&logprob, 1),
                         std::span(&span, 1)});
    if (result.versions.empty() || result.versions.back().version != version_) {
      result.versions.push_back({version_, 0});
    }
    ++result.versions.back().num_tokens;
  }

  static void finish(Job& job, FinishReason reason) {
    job.result.id = job.request.id;
    job.result.finish_reason = reason;
    job.sink->on_rollout(std::move(job.result));
  }

  engines::ReplayOptions options_;
  PolicyVersion version_;
  std::uint64_t weight_bits_;
  std::list<Job> jobs_;  // in order of arrival
};

}  // namespace

std::unique_ptr<engines::RolloutEngine> make_mixing_rollout_engine(
    const engines::ReplayOptions& options, const Snapshot& initial) {
  return std::make_unique<MixingRolloutEngine>(options, initial);
}

}  // namespace tidemill::test
