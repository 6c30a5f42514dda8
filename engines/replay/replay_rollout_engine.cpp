// SPDX-License-Identifier: Apache-2.0
// A rollout engine that generates by hash and in virtual time.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "engines/replay/factory.hpp"
#include "engines/replay/replay_tokens.hpp"

namespace tidemill::engines {
namespace {

class ReplayRolloutEngine final : public RolloutEngine {
public:
  ReplayRolloutEngine(const ReplayOptions& options, const Snapshot& initial)
      : options_(options), version_(initial.version) {
    weight_bits_ = replay_weight_bits(initial.base_digest);
  }

  Status submit(RolloutRequest request, RolloutSink& sink) override {
    if (request.prompt_ids.empty()) {
      return invalid_argument("empty prompt sample_id=" + std::to_string(request.id.value));
    }
    if (!request.adapter.empty()) {
      return {Errc::kNotFound,
              "adapter: the replay engine has none sample_id=" + std::to_string(request.id.value)};
    }
    if (request.constraint.is_set) {
      return invalid_argument("constraint: the replay engine has no tokens to permit sample_id=" +
                              std::to_string(request.id.value));
    }
    if (request.time_limit > Duration::zero() && options_.clock == nullptr) {
      return invalid_argument("time_limit: this engine has no clock sample_id=" +
                              std::to_string(request.id.value));
    }
    if (running_.contains(request.id) ||
        std::any_of(waiting_.begin(), waiting_.end(),
                    [&](const Job& job) { return job.request.id == request.id; })) {
      return invalid_argument("already queued sample_id=" + std::to_string(request.id.value));
    }
    waiting_.push_back({std::move(request), &sink, {}, {}, 0, {}});
    waiting_.back().length = length_of(waiting_.back().request);
    return {};
  }

  void cancel(SampleId id) override {
    if (const auto it = running_.find(id); it != running_.end()) {
      finish(it->second, FinishReason::kCancelled);
      running_.erase(it);
      activate_pending();
      return;
    }
    const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const Job& job) { return job.request.id == id; });
    if (it != waiting_.end()) {
      finish(*it, FinishReason::kCancelled);
      waiting_.erase(it);
    }
  }

  Status load(Snapshot snapshot, WeightArrival /*arrival*/) override {
    if (digest_tensors(snapshot.base) != snapshot.base_digest) {
      return corrupt_data("snapshot " + to_string(snapshot.version) + ": digest does not match");
    }
    const PolicyVersion& newest = pending_.has_value() ? pending_->version : version_;
    if (snapshot.version < newest) {
      return {Errc::kStaleVersion,
              "snapshot " + to_string(snapshot.version) + " is older than " + to_string(newest)};
    }
    pending_ = std::move(snapshot);
    activate_pending();
    return {};
  }

  PolicyVersion serving_version() const override { return version_; }

  bool has_work() const override {
    return !running_.empty() ||
           (!pending_.has_value() && std::any_of(waiting_.begin(), waiting_.end(),
                                                 [&](const Job& job) { return may_start(job); }));
  }

  Result<StepReport> step(const StepBudget& /*budget*/) override {
    end_overdue();
    start_waiting();
    StepReport report;
    // One call represents all decode iterations until the next response ends.
    std::uint32_t iterations = 0;
    for (const auto& [id, job] : running_) {
      const auto left = std::min(job.length - static_cast<std::uint32_t>(job.tokens.size()),
                                 iterations_before_deadline(job));
      iterations = iterations == 0 ? left : std::min(iterations, left);
    }
    for (auto it = running_.begin(); it != running_.end();) {
      Job& job = it->second;
      append_tokens(job, iterations);
      report.decode_tokens += iterations;
      if (job.tokens.size() == job.length) {
        finish(job, job.length == static_cast<std::uint32_t>(job.request.max_new_tokens)
                        ? FinishReason::kLength
                        : FinishReason::kStop);
        it = running_.erase(it);
      } else {
        ++it;
      }
    }
    report.virtual_duration = options_.decode_time * iterations;
    activate_pending();
    report.more = has_work();
    return report;
  }

private:
  struct Job {
    RolloutRequest request;
    RolloutSink* sink;
    std::vector<std::int32_t> tokens;
    std::vector<float> logprobs;
    std::uint32_t length;
    std::optional<TimePoint> deadline;  // set at the start, if there is a time limit
  };

  std::uint32_t length_of(const RolloutRequest& request) const {
    const std::uint32_t wanted =
        options_.length_of ? options_.length_of(request.id)
                           : 1 + static_cast<std::uint32_t>(
                                     keyed_bits(options_.seed, request.key(), 1U << 20U) % 8);
    return std::clamp(wanted, 1U, static_cast<std::uint32_t>(std::max(request.max_new_tokens, 1)));
  }

  // Returns how many decode iterations that begin now begin before the deadline of `job`, which has
  // not passed.
  std::uint32_t iterations_before_deadline(const Job& job) const {
    if (!job.deadline.has_value() || options_.decode_time <= Duration::zero()) {
      return std::numeric_limits<std::uint32_t>::max();
    }
    const Duration left = *job.deadline - options_.clock->now();
    const auto iterations = (left + options_.decode_time - Duration(1)) / options_.decode_time;
    return static_cast<std::uint32_t>(
        std::min<std::int64_t>(iterations, std::numeric_limits<std::uint32_t>::max()));
  }

  void end_overdue() {
    for (auto it = running_.begin(); it != running_.end();) {
      Job& job = it->second;
      if (job.deadline.has_value() && *job.deadline <= options_.clock->now()) {
        finish(job, FinishReason::kCancelled, "exceeded its time limit");
        it = running_.erase(it);
      } else {
        ++it;
      }
    }
    activate_pending();
  }

  bool may_start(const Job& job) const { return job.request.min_step <= version_.step; }

  void start_waiting() {
    if (pending_.has_value()) {
      return;  // nothing starts before the new weights serve
    }
    for (auto it = waiting_.begin();
         it != waiting_.end() && static_cast<std::int64_t>(running_.size()) < options_.slots;) {
      if (may_start(*it)) {
        if (it->request.time_limit > Duration::zero()) {
          it->deadline = options_.clock->now() + it->request.time_limit;
        }
        running_.emplace(it->request.id, std::move(*it));
        it = waiting_.erase(it);
      } else {
        ++it;
      }
    }
  }

  void append_tokens(Job& job, std::uint32_t count) const {
    const std::size_t first = job.tokens.size();
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::int32_t token =
          replay_token(job.request.seed, weight_bits_, job.request.key(), job.tokens.size());
      const std::uint64_t t = job.request.prompt_ids.size() + job.tokens.size();
      job.tokens.push_back(token);
      job.logprobs.push_back(replay_logprob(weight_bits_, token, t));
    }
    if (count > 0) {
      const VersionSpan span{version_, count};
      job.sink->on_tokens({job.request.id, first, std::span(job.tokens).subspan(first),
                           std::span(job.logprobs).subspan(first), std::span(&span, 1)});
    }
  }

  void finish(Job& job, FinishReason reason, std::string error = "") const {
    RolloutResult result;
    result.id = job.request.id;
    result.versions = {{version_, static_cast<std::uint32_t>(job.tokens.size())}};
    result.response_ids = std::move(job.tokens);
    result.behavior_logprobs = std::move(job.logprobs);
    result.finish_reason = reason;
    result.error = std::move(error);
    job.sink->on_rollout(std::move(result));
  }

  void activate_pending() {
    if (pending_.has_value() && running_.empty()) {
      version_ = pending_->version;
      weight_bits_ = replay_weight_bits(pending_->base_digest);
      pending_.reset();
    }
  }

  ReplayOptions options_;
  PolicyVersion version_;
  std::uint64_t weight_bits_ = 0;
  std::optional<Snapshot> pending_;
  std::map<SampleId, Job> running_;
  std::deque<Job> waiting_;
};

}  // namespace

std::unique_ptr<RolloutEngine> make_replay_rollout_engine(const ReplayOptions& options,
                                                          const Snapshot& initial) {
  return std::make_unique<ReplayRolloutEngine>(options, initial);
}

}  // namespace tidemill::engines
