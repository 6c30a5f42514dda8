// SPDX-License-Identifier: Apache-2.0
#include "actors/device/train_run.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tidemill::actors {

using engines::TrainSequence;

TrainRun::TrainRun(engines::TrainingJob& job, LossFactory make_loss, TrainRequest request)
    : job_(job), make_loss_(std::move(make_loss)), request_(std::move(request)) {}

TrainRun::~TrainRun() {
  job_.cancel();
}

Status TrainRun::advance() {
  Status status = take_stages();
  if (!status.ok()) {
    job_.cancel();
  }
  return status;
}

Status TrainRun::take_stages() {
  while (!finished_ && !job_.has_work()) {
    switch (stage_) {
      case Stage::kStart:
        TIDEMILL_RETURN_IF_ERROR(probe());
        TIDEMILL_RETURN_IF_ERROR(request_.recompute_proximal || request_.score_only
                                     ? begin_scoring()
                                     : begin_minibatch());
        break;
      case Stage::kScoring:
        TIDEMILL_RETURN_IF_ERROR(end_scoring());
        finished_ = request_.score_only;
        TIDEMILL_RETURN_IF_ERROR(finished_ ? Status{} : begin_minibatch());
        break;
      case Stage::kTraining: TIDEMILL_RETURN_IF_ERROR(end_minibatch()); break;
      case Stage::kStepping:
        outcome_.updates.push_back(job_.last_update());
        ++minibatch_;
        TIDEMILL_RETURN_IF_ERROR(begin_minibatch());
        break;
      case Stage::kSaving:
        outcome_.snapshot = job_.take_snapshot();
        finished_ = true;
        break;
    }
  }
  return {};
}

Status TrainRun::probe() {
  if (request_.probe.empty()) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      const auto scored, job_.score(request_.probe_weights, request_.probe, request_.temperature));
  for (std::size_t i = 0; i < scored.size(); ++i) {
    compare(scored[i], request_.probe[i]);
  }
  return {};
}

void TrainRun::compare(std::span<const float> trained, const TrainSequence& sequence) {
  for (std::size_t t = 1; t < sequence.ids.size(); ++t) {
    if (sequence.response_mask[t] != 0) {
      const double difference =
          std::abs(static_cast<double>(trained[t]) - sequence.behavior_logprobs[t]);
      // A NaN fails this comparison, so it is kept instead of lost behind the largest number.
      outcome_.gap.max = difference <= outcome_.gap.max ? outcome_.gap.max : difference;
      ++outcome_.gap.num_tokens;
    }
  }
}

void TrainRun::add_score(std::span<const float> logprobs, const TrainSequence& sequence) {
  for (std::size_t t = 1; t < sequence.ids.size(); ++t) {
    if (sequence.response_mask[t] != 0) {
      outcome_.score.logprob_sum += logprobs[t];
      ++outcome_.score.num_targets;
    }
  }
}

Status TrainRun::begin_scoring() {
  stage_ = Stage::kScoring;
  engines::TrainBatch batch;
  batch.temperature = request_.temperature;
  for (const TrainMinibatch& minibatch : request_.minibatches) {
    batch.sequences.insert(batch.sequences.end(), minibatch.sequences.begin(),
                           minibatch.sequences.end());
  }
  return job_.forward(std::move(batch));
}

Status TrainRun::end_scoring() {
  for (TrainMinibatch& minibatch : request_.minibatches) {
    for (TrainSequence& sequence : minibatch.sequences) {
      TIDEMILL_ASSIGN_OR_RETURN(std::vector<float> logprobs, job_.logprobs(sequence.id));
      if (request_.score_only) {
        add_score(logprobs, sequence);
      } else {
        sequence.proximal_logprobs = std::move(logprobs);
      }
    }
  }
  return {};
}

Status TrainRun::begin_minibatch() {
  stage_ = Stage::kTraining;
  // A minibatch whose groups were all dropped is skipped.
  while (epoch_ < request_.epochs && (minibatch_ == request_.minibatches.size() ||
                                      request_.minibatches[minibatch_].sequences.empty())) {
    if (minibatch_ < request_.minibatches.size()) {
      ++minibatch_;
    } else {
      minibatch_ = 0;
      ++epoch_;
    }
  }
  if (epoch_ >= request_.epochs) {
    stage_ = Stage::kSaving;
    return job_.save(request_.publish_as);
  }
  const auto& sequences = request_.minibatches[minibatch_].sequences;
  TIDEMILL_ASSIGN_OR_RETURN(loss_, make_loss_(sequences));
  return job_.forward_backward({sequences, request_.temperature}, *loss_);
}

Status TrainRun::compare_on_policy() {
  const TrainMinibatch& minibatch = request_.minibatches[minibatch_];
  for (const SampleId id : minibatch.on_policy) {
    if (job_.recalled(id)) {
      continue;  // recalled from generation, so equal by construction
    }
    const auto sequence = std::find_if(minibatch.sequences.begin(), minibatch.sequences.end(),
                                       [id](const TrainSequence& s) { return s.id == id; });
    TIDEMILL_CHECK(sequence != minibatch.sequences.end()) << "sample=" << id.value;
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<float> trained, job_.logprobs(id));
    compare(trained, *sequence);
  }
  return {};
}

Status TrainRun::end_minibatch() {
  if (outcome_.updates.empty()) {  // the weights are still those that the request started from
    TIDEMILL_RETURN_IF_ERROR(compare_on_policy());
  }
  stage_ = Stage::kStepping;
  return job_.optim_step();
}

}  // namespace tidemill::actors
