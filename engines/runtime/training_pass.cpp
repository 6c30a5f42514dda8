// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/training_pass.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// Fails, naming the sequence, if a column is not finite.
Status check_finite(std::span<const TrainSequence* const> sequences,
                    const std::vector<std::vector<float>>& columns, const char* what) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (!std::ranges::all_of(columns[i], [](float x) { return std::isfinite(x); })) {
      return {Errc::kInternal, std::string(what) + " not finite" + sample_text(sequences[i]->id)};
    }
  }
  return {};
}

}  // namespace

TrainingPass::TrainingPass(RuntimeContext& context, const PassResources& resources,
                           const LaidOutWeights& weights, TokenLoss* loss)
    : context_(context),
      resources_(resources),
      weights_(weights),
      loss_(loss),
      micro_(context, resources.reserved) {}

TrainingPass::~TrainingPass() {
  static_cast<void>(
      context_.ops->synchronize());  // a pass whose results are used has waited before
}

bool TrainingPass::start(GeneratedRows* generated) {
  sequence_rows_ = micro_.sequence_rows();
  row_logprobs_.resize(micro_.targets().size());
  row_entropies_.resize(loss_ != nullptr ? row_logprobs_.size() : 0);
  if (micro_.rows() == 0) {
    stage_ = Stage::kLoss;
    return false;
  }
  if (generated != nullptr) {
    units_ = micro_.start_recall(resources_.transformer, weights_, resources_.activations,
                                 *generated, resources_.window_tokens);
  }
  const bool recalled = units_ != nullptr;
  if (!recalled) {
    units_ = micro_.start_forward(resources_.transformer, weights_, resources_.activations,
                                  resources_.window_tokens);
  }
  return recalled;
}

Status TrainingPass::run_unit(LossSums& sums) {
  TIDEMILL_CHECK(!done());
  if (stage_ != Stage::kLoss) {
    run_device_unit();
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(score());
  if (loss_ != nullptr) {
    TIDEMILL_RETURN_IF_ERROR(run_loss(sums));
  }
  if (stage_ == Stage::kLoss) {  // there is no gradient to propagate
    stage_ = Stage::kDone;
  }
  return {};
}

void TrainingPass::run_device_unit() {
  if (!units_->done()) {
    units_->run();
  }
  while (units_ != nullptr && units_->done()) {
    go_on();
  }
}

// Goes on to the stage after the one whose units have run.
void TrainingPass::go_on() {
  done_units_.push_back(std::move(units_));
  switch (stage_) {
    case Stage::kForward:
      hidden_ = micro_.hidden(resources_.transformer);
      stage_ = Stage::kLogprobs;
      units_ =
          resources_.transformer.start_token_logprobs(head_input(), row_logprobs_, row_entropies_);
      break;
    case Stage::kLogprobs: stage_ = Stage::kLoss; break;
    case Stage::kHeadBackward:
      stage_ = Stage::kBackward;
      start_backward();
      break;
    case Stage::kBackward: stage_ = Stage::kDone; break;
    case Stage::kLoss:
    case Stage::kDone: break;
  }
}

HeadInput TrainingPass::head_input() {
  return {weights_.base.get(), weights_.adapter.get(), hidden_,
          micro_.targets(),    resources_.head,        sequence_rows_};
}

Status TrainingPass::score() {
  columns_ = micro_.to_columns(row_logprobs_);
  return check_finite(micro_.sequences(), columns_, "log-probability");
}

// Evaluates the loss and starts to propagate its gradients.
Status TrainingPass::run_loss(LossSums& sums) {
  const auto entropies = micro_.to_columns(row_entropies_);
  std::vector<std::vector<float>> dlogprobs;
  std::vector<std::vector<float>> dentropies;
  for (const auto& column : columns_) {
    dlogprobs.emplace_back(column.size());
    dentropies.emplace_back(column.size());
  }
  std::vector<LossRow> rows;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    rows.push_back({micro_.sequences()[i], columns_[i], entropies[i], dlogprobs[i], dentropies[i]});
  }
  TIDEMILL_RETURN_IF_ERROR(loss_->evaluate(rows, sums));
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro_.sequences(), dlogprobs, "gradient of the loss"));
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro_.sequences(), dentropies, "gradient of the loss"));
  if (micro_.rows() == 0) {
    return {};
  }
  // Always passes entropy gradients, even if zero: a decision per micro-batch could change bits.
  const std::vector<float> row_dlogprobs = micro_.to_rows(dlogprobs);
  const std::vector<float> row_dentropies = micro_.to_rows(dentropies);
  const Matrix dhidden = resources_.dhidden.reshape(hidden_.rows, hidden_.cols);
  stage_ = Stage::kHeadBackward;
  units_ = resources_.transformer.start_token_logprobs_backward(
      head_input(), {row_dlogprobs, row_dentropies, true}, dhidden, resources_.gradients);
  while (units_ != nullptr && units_->done()) {
    go_on();
  }
  return {};
}

void TrainingPass::start_backward() {
  units_ = resources_.transformer.start_backward(*weights_.base, micro_.batch(), *context_.cache,
                                                 resources_.activations, resources_.dhidden.view(),
                                                 resources_.gradients,
                                                 {resources_.window_tokens, &resources_.carried});
}

}  // namespace tidemill::engines
