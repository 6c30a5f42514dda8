// SPDX-License-Identifier: Apache-2.0
// Watches which weights produced which tokens (I3): a reader never sees weights that mix two
// versions, nor, within an incarnation, an older version than it has seen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/replay/factory.hpp"
#include "engines/replay/replay_tokens.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/train_engine.hpp"
#include "tests/sim/simulated_parts.hpp"

namespace tidemill::test {

/// Knows the weights behind every version that an engine was ever given, and holds every token
/// against the weights that its version names: the log-probability of a replayed token is a hash of
/// them, so that a token of other weights does not pass.
class VersionWitness {
public:
  using Violate = std::function<void(const std::string&)>;

  /// `digests` names the weights of versions by incarnation and step; it outlives the witness.
  VersionWitness(const engines::ReplayOptions& replay, PublishedDigests& digests, Violate violate)
      : seed_(replay.seed),
        digests_(digests),
        violate_(std::move(violate)),
        scorer_(engines::make_replay_train_engine(replay,
                                                  engines::replay_initial_snapshot(replay.seed))) {}

  /// Wraps the engine of one incarnation, which starts with `initial`.
  std::unique_ptr<engines::RolloutEngine> watch(std::unique_ptr<engines::RolloutEngine> engine,
                                                const engines::Snapshot& initial) {
    publish(initial);
    return std::make_unique<Watched>(*this, std::move(engine));
  }

  /// Checks that every token is one of the version that it says it is.
  void check_sample(SampleId id, const std::vector<engines::VersionSpan>& versions,
                    const std::vector<std::int32_t>& ids, const std::vector<float>& logprobs) {
    std::size_t begin = 0;
    for (const engines::VersionSpan& span : versions) {
      const auto known = digests_.find({span.version.incarnation, span.version.step});
      if (known == digests_.end()) {
        violate_(sample_text(id) + " names version " + to_string(span.version) +
                 ", which no engine was given");
        return;
      }
      if (begin + span.num_tokens > ids.size()) {
        break;  // counted below
      }
      check_span(id, known->second, ids, logprobs, begin, span.num_tokens);
      begin += span.num_tokens;
      tokens_checked_ += span.num_tokens;
    }
    if (begin != ids.size() || logprobs.size() != ids.size()) {
      violate_(sample_text(id) + ": its version spans do not cover its tokens");
    }
  }

  /// Checks that a sample, which passes `check_sample`, was drawn by the random numbers of the
  /// run's seed, its id and its positions (I6).
  void check_draws(SampleId id, const std::vector<engines::VersionSpan>& versions,
                   const std::vector<std::int32_t>& ids) {
    std::size_t t = 0;
    for (const engines::VersionSpan& span : versions) {
      const auto known = digests_.find({span.version.incarnation, span.version.step});
      for (std::uint32_t i = 0; known != digests_.end() && i < span.num_tokens && t < ids.size();
           ++i, ++t) {
        const std::uint64_t bits = engines::replay_weight_bits(known->second);
        if (ids[t] != engines::replay_token(seed_, bits, id, t)) {
          violate_(sample_text(id) + ": token " + std::to_string(t) +
                   " was not drawn by the numbers of its sample and position");
          return;
        }
      }
    }
  }

  [[nodiscard]] std::uint64_t tokens_checked() const { return tokens_checked_; }

private:
  class Watched final : public engines::RolloutEngine, public engines::RolloutSink {
  public:
    Watched(VersionWitness& witness, std::unique_ptr<engines::RolloutEngine> inner)
        : witness_(witness), inner_(std::move(inner)) {}

    Status submit(engines::RolloutRequest request, engines::RolloutSink& sink) override {
      const SampleId id = request.id;
      const std::uint64_t min_step = request.min_step;
      const Status status = inner_->submit(std::move(request), *this);
      if (status.ok()) {
        asked_[id] = {&sink, min_step};
      }
      return status;
    }
    void cancel(SampleId id) override { inner_->cancel(id); }
    Status load(engines::Snapshot snapshot, engines::WeightArrival arrival) override {
      witness_.publish(snapshot);
      return inner_->load(std::move(snapshot), arrival);
    }
    PolicyVersion serving() const override { return inner_->serving(); }
    bool has_work() const override { return inner_->has_work(); }
    Result<engines::StepReport> step(const engines::StepBudget& budget) override {
      return inner_->step(budget);
    }

    void on_rollout(engines::RolloutResult result) override {
      const auto asked = asked_.find(result.id);
      if (asked == asked_.end()) {
        witness_.violate_(sample_text(result.id) + " was answered twice");
        return;
      }
      const auto [sink, min_step] = asked->second;
      asked_.erase(asked);
      if (result.finish_reason != engines::FinishReason::kCancelled) {
        witness_.check_sample(result.id, result.versions, result.response_ids,
                              result.behavior_logprobs);
        for (const engines::VersionSpan& span : result.versions) {
          if (span.version < newest_) {
            witness_.violate_(sample_text(result.id) + " is of version " + to_string(span.version) +
                              ", older than " + to_string(newest_));
          }
          if (span.version.step < min_step) {
            witness_.violate_(sample_text(result.id) + " was started by weights too old for it");
          }
          newest_ = std::max(newest_, span.version);
        }
      }
      sink->on_rollout(std::move(result));
    }

  private:
    VersionWitness& witness_;
    std::unique_ptr<engines::RolloutEngine> inner_;
    std::map<SampleId, std::pair<engines::RolloutSink*, std::uint64_t>> asked_;
    PolicyVersion newest_;  // that a response has ended with
  };

  static std::string sample_text(SampleId id) { return "sample " + std::to_string(id.value); }

  void publish(const engines::Snapshot& snapshot) {
    const auto [known, fresh] = digests_.try_emplace(
        {snapshot.version.incarnation, snapshot.version.step}, snapshot.base_digest);
    if (!fresh && known->second != snapshot.base_digest) {
      violate_("two sets of weights are called version " + to_string(snapshot.version));
    }
  }

  void check_span(SampleId id, const std::string& digest, const std::vector<std::int32_t>& ids,
                  const std::vector<float>& logprobs, std::size_t begin, std::uint32_t count) {
    engines::TrainSequence sequence;
    sequence.ids.assign(kPromptTokens, 0);
    sequence.ids.insert(sequence.ids.end(), ids.begin(), ids.end());
    sequence.response_mask.assign(sequence.ids.size(), 1);
    engines::Snapshot weights;
    weights.base_digest = digest;
    const auto scored = scorer_->score(weights, {&sequence, 1}, 1.0F).value().front();
    for (std::size_t t = begin; t < begin + count && t < logprobs.size(); ++t) {
      if (scored[kPromptTokens + t] != logprobs[t]) {
        violate_(sample_text(id) + ": token " + std::to_string(t) +
                 " is not of the weights that its version names");
        return;
      }
    }
  }

  std::uint64_t seed_;
  PublishedDigests& digests_;
  Violate violate_;
  std::unique_ptr<engines::TrainEngine> scorer_;
  std::uint64_t tokens_checked_ = 0;
};

}  // namespace tidemill::test
