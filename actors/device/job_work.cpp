// SPDX-License-Identifier: Apache-2.0
#include "actors/device/job_work.hpp"

#include <utility>

namespace tidemill::actors {
namespace {

using engines::TrainingJob;

class TrainWork final : public JobWork {
public:
  TrainWork(TrainingJob& job, LossFactory make_loss, TrainRequest request)
      : run_(job, std::move(make_loss), std::move(request)) {}
  Status advance() override { return run_.advance(); }
  bool finished() const override { return run_.finished(); }
  void settle(Ticket ticket, const Status& failure, Outcomes& outcomes) override {
    outcomes.add<TrainOutcome>(ticket, failure.ok() ? Result<TrainOutcome>(run_.take_outcome())
                                                    : Result<TrainOutcome>(failure));
  }

private:
  TrainRun run_;
};

// Passes a loss on, and adds its sums up for one request in addition to those of the optimizer
// step.
class SummedLoss final : public engines::TokenLoss {
public:
  explicit SummedLoss(std::unique_ptr<TokenLoss> inner) : inner_(std::move(inner)) {}
  Status evaluate(std::span<const engines::LossSequence> sequences,
                  engines::LossSums& sums) override {
    engines::LossSums own;
    TIDEMILL_RETURN_IF_ERROR(inner_->evaluate(sequences, own));
    for (const auto& [name, value] : own) {
      sums[name] += value;
      sums_[name] += value;
    }
    return {};
  }
  bool is_token_local() const override { return inner_->is_token_local(); }
  Status token_gradients(const engines::LossTokens& tokens) override {
    return inner_->token_gradients(tokens);
  }
  [[nodiscard]] const engines::LossSums& sums() const noexcept { return sums_; }

private:
  std::unique_ptr<TokenLoss> inner_;
  engines::LossSums sums_;
};

// Work that starts once, and whose outcome is read once the job has no work left.
template <class Value>
class SimpleWork : public JobWork {
public:
  explicit SimpleWork(TrainingJob& job) : job_(job) {}
  Status advance() final {
    if (!std::exchange(started_, true)) {
      TIDEMILL_RETURN_IF_ERROR(start());
    }
    if (!job_.has_work()) {
      TIDEMILL_ASSIGN_OR_RETURN(outcome_, take());
      finished_ = true;
    }
    return {};
  }
  bool finished() const final { return finished_; }
  void settle(Ticket ticket, const Status& failure, Outcomes& outcomes) final {
    outcomes.add<Value>(ticket,
                        failure.ok() ? Result<Value>(std::move(outcome_)) : Result<Value>(failure));
  }

protected:
  [[nodiscard]] virtual Status start() = 0;
  [[nodiscard]] virtual Result<Value> take() = 0;

  TrainingJob& job_;

private:
  Value outcome_;
  bool started_ = false;
  bool finished_ = false;
};

class PassWork final : public SimpleWork<PassOutcome> {
public:
  PassWork(TrainingJob& job, std::shared_ptr<const PassRequest> request)
      : SimpleWork(job), request_(std::move(request)) {}
  // The work of the job may refer to the loss.
  ~PassWork() override {
    if (job_.has_work()) {
      job_.cancel();
    }
  }

private:
  Status start() override {
    if (!request_->make_loss) {
      return job_.forward(request_->batch);
    }
    TIDEMILL_ASSIGN_OR_RETURN(auto loss, request_->make_loss(request_->batch.sequences));
    loss_ = std::make_unique<SummedLoss>(std::move(loss));
    return job_.forward_backward(request_->batch, *loss_);
  }
  Result<PassOutcome> take() override {
    PassOutcome outcome;
    for (const engines::TrainSequence& sequence : request_->batch.sequences) {
      TIDEMILL_ASSIGN_OR_RETURN(std::vector<float> logprobs, job_.logprobs(sequence.id));
      outcome.logprobs.push_back(std::move(logprobs));
    }
    if (loss_ != nullptr) {
      outcome.sums = loss_->sums();
    }
    return outcome;
  }

  std::shared_ptr<const PassRequest> request_;
  std::unique_ptr<SummedLoss> loss_;
};

class StepWork final : public SimpleWork<engines::UpdateReport> {
public:
  StepWork(TrainingJob& job, std::shared_ptr<const engines::OptimStep> step)
      : SimpleWork(job), step_(std::move(step)) {}

private:
  Status start() override { return job_.optim_step(*step_); }
  Result<engines::UpdateReport> take() override { return job_.last_update(); }

  std::shared_ptr<const engines::OptimStep> step_;
};

class SaveWork final : public SimpleWork<engines::Snapshot> {
public:
  SaveWork(TrainingJob& job, PolicyVersion version) : SimpleWork(job), version_(version) {}

private:
  Status start() override { return job_.save(version_); }
  Result<engines::Snapshot> take() override { return job_.take_snapshot(); }

  PolicyVersion version_;
};

class CaptureWork final : public SimpleWork<OptimizerState> {
public:
  using SimpleWork::SimpleWork;

private:
  Status start() override { return job_.capture(); }
  Result<OptimizerState> take() override { return OptimizerState{job_.take_optimizer_state()}; }
};

}  // namespace

std::unique_ptr<JobWork> make_train_work(TrainingJob& job, LossFactory make_loss,
                                         TrainRequest request) {
  return std::make_unique<TrainWork>(job, std::move(make_loss), std::move(request));
}
std::unique_ptr<JobWork> make_pass_work(TrainingJob& job,
                                        std::shared_ptr<const PassRequest> request) {
  return std::make_unique<PassWork>(job, std::move(request));
}
std::unique_ptr<JobWork> make_step_work(TrainingJob& job,
                                        std::shared_ptr<const engines::OptimStep> step) {
  return std::make_unique<StepWork>(job, std::move(step));
}
std::unique_ptr<JobWork> make_save_work(TrainingJob& job, PolicyVersion version) {
  return std::make_unique<SaveWork>(job, version);
}
std::unique_ptr<JobWork> make_capture_work(TrainingJob& job) {
  return std::make_unique<CaptureWork>(job);
}

}  // namespace tidemill::actors
