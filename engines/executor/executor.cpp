// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/executor.hpp"

namespace tidemill::engines {

bool Executor::has_work() const {
  return (rollout_ != nullptr && rollout_->has_work()) || (train_ != nullptr && train_->has_work());
}

bool Executor::training_goes_first() const noexcept {
  switch (options_.precedence) {
    case Precedence::kShares: return train_debt_ >= 0.0;
    case Precedence::kRollout: return false;
    case Precedence::kTrain: return true;
  }
  return false;
}

Result<StepReport> Executor::iterate() {
  const bool can_generate = rollout_ != nullptr && rollout_->has_work();
  const bool can_train = train_ != nullptr && train_->has_work();
  TIDEMILL_CHECK(can_generate || can_train) << "iterate() called without work";
  if (!can_generate || !can_train) {
    train_debt_ = 0.0;  // what one side does while the other is idle adds no debt
  }
  if (can_train && (!can_generate || training_goes_first())) {
    auto report = train();
    const bool waits = report.ok() && report.value().waits_for_pages;
    return waits && can_generate ? generate() : report;
  }
  return generate();
}

Result<StepReport> Executor::train() {
  trained_ = true;
  auto report = train_->advance({options_.train_tokens});
  if (!report.ok()) {
    return report.status().with_context("training step");
  }
  train_debt_ -= static_cast<double>(report.value().train_tokens);
  return report;
}

Result<StepReport> Executor::generate() {
  trained_ = false;
  auto report = rollout_->step({options_.rollout_tokens, options_.prefill_tokens});
  if (!report.ok()) {
    return report.status().with_context("rollout step");
  }
  train_debt_ += options_.train_weight / options_.rollout_weight *
                 static_cast<double>(report.value().prefill_tokens + report.value().decode_tokens);
  return report;
}

}  // namespace tidemill::engines
