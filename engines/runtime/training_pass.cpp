// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/training_pass.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// Fails, naming the sequence, if a value is not finite.
Status check_finite(const TrainSequence& sequence, std::span<const float> values,
                    const char* what) {
  if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) {
    return {Errc::kInternal, std::string(what) + " not finite" + sample_text(sequence.id)};
  }
  return {};
}

Status check_finite(std::span<const TrainSequence* const> sequences,
                    const std::vector<std::vector<float>>& columns, const char* what) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    TIDEMILL_RETURN_IF_ERROR(check_finite(*sequences[i], columns[i], what));
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

UnitKind TrainingPass::next() const {
  if (units_ != nullptr && !units_->done()) {
    return units_->next();
  }
  return {UnitStage::kLoss, 0, micro_.rows(), 0};
}

Status TrainingPass::run_unit(LossSums& sums) {
  TIDEMILL_CHECK(!done());
  if (stage_ != Stage::kLoss) {
    return run_device_unit();
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

Status TrainingPass::run_device_unit() {
  if (!units_->done()) {
    units_->run();
    TIDEMILL_RETURN_IF_ERROR(token_loss_);
  }
  while (units_ != nullptr && units_->done()) {
    go_on();
  }
  return {};
}

// Goes on to the stage after the one whose units have run.
void TrainingPass::go_on() {
  done_units_.push_back(std::move(units_));
  switch (stage_) {
    case Stage::kForward: start_head(); break;
    case Stage::kLogprobs:
    case Stage::kTokenLoss: stage_ = Stage::kLoss; break;
    case Stage::kHeadBackward: start_backward(); break;
    case Stage::kBackward: stage_ = Stage::kDone; break;
    case Stage::kLoss:
    case Stage::kDone: break;
  }
}

HeadInput TrainingPass::head_input() {
  return {weights_.base.get(), weights_.adapter.get(), hidden_,
          micro_.targets(),    resources_.head,        sequence_rows_};
}

void TrainingPass::start_head() {
  hidden_ = micro_.hidden(resources_.transformer);
  if (loss_ == nullptr || !loss_->is_token_local()) {
    stage_ = Stage::kLogprobs;
    units_ =
        resources_.transformer.start_token_logprobs(head_input(), row_logprobs_, row_entropies_);
    return;
  }
  stage_ = Stage::kTokenLoss;
  row_dlogprobs_.assign(row_logprobs_.size(), 0.0F);
  row_dentropies_.assign(row_logprobs_.size(), 0.0F);
  const auto set = [this](std::int64_t first, std::int64_t end) {
    if (token_loss_.ok()) {
      token_loss_ = set_gradients(first, end);
    }
  };
  units_ = resources_.transformer.start_token_loss(
      head_input(), {row_logprobs_, row_entropies_, row_dlogprobs_, row_dentropies_, set},
      resources_.dhidden.reshape(hidden_.rows, hidden_.cols), resources_.gradients);
}

// Evaluates a token-local loss at the tokens of the rows [first_row, end_row).
Status TrainingPass::set_gradients(std::int64_t first_row, std::int64_t end_row) {
  for (const MicroBatch::TokenRange& tokens : micro_.tokens_of(first_row, end_row)) {
    const auto part = [&tokens](std::vector<float>& rows) {
      return std::span(rows).subspan(tokens.first_row, tokens.count);
    };
    const LossTokens values{tokens.sequence,      tokens.first_token,   part(row_logprobs_),
                            part(row_entropies_), part(row_dlogprobs_), part(row_dentropies_)};
    TIDEMILL_RETURN_IF_ERROR(check_finite(*tokens.sequence, values.logprobs, "log-probability"));
    TIDEMILL_RETURN_IF_ERROR(loss_->token_gradients(values));
    for (const std::span<const float> gradients : {values.dlogprobs, values.dentropies}) {
      TIDEMILL_RETURN_IF_ERROR(check_finite(*tokens.sequence, gradients, "gradient of the loss"));
    }
  }
  return {};
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
  std::vector<LossSequence> rows;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    rows.push_back({micro_.sequences()[i], columns_[i], entropies[i], dlogprobs[i], dentropies[i]});
  }
  TIDEMILL_RETURN_IF_ERROR(loss_->evaluate(rows, sums));
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro_.sequences(), dlogprobs, "gradient of the loss"));
  TIDEMILL_RETURN_IF_ERROR(check_finite(micro_.sequences(), dentropies, "gradient of the loss"));
  if (micro_.rows() == 0) {
    return {};
  }
  const std::vector<float> row_dlogprobs = micro_.to_rows(dlogprobs);
  const std::vector<float> row_dentropies = micro_.to_rows(dentropies);
  if (!row_dlogprobs_.empty()) {  // `kTokenLoss` has propagated them through the head
    TIDEMILL_RETURN_IF_ERROR(check_gradients(row_dlogprobs, row_dentropies));
    start_backward();
    return {};
  }
  // Always passes entropy gradients, even if zero: a decision per micro-batch could change bits.
  const Matrix dhidden = resources_.dhidden.reshape(hidden_.rows, hidden_.cols);
  stage_ = Stage::kHeadBackward;
  units_ = resources_.transformer.start_token_logprobs_backward(
      head_input(), {row_dlogprobs, row_dentropies, true}, dhidden, resources_.gradients);
  while (units_ != nullptr && units_->done()) {
    go_on();
  }
  return {};
}

// Fails, naming the sequence, if the gradients that were propagated are not those of the loss.
Status TrainingPass::check_gradients(const std::vector<float>& dlogprobs,
                                     const std::vector<float>& dentropies) const {
  for (const MicroBatch::TokenRange& tokens : micro_.tokens_of(0, std::ssize(dlogprobs))) {
    const auto same = [&tokens](const std::vector<float>& a, const std::vector<float>& b) {
      return std::ranges::equal(std::span(a).subspan(tokens.first_row, tokens.count),
                                std::span(b).subspan(tokens.first_row, tokens.count));
    };
    if (!same(dlogprobs, row_dlogprobs_) || !same(dentropies, row_dentropies_)) {
      return {Errc::kInternal,
              "the loss says that it is token-local, but the gradients of single "
              "tokens differ from those of the sequence" +
                  sample_text(tokens.sequence->id)};
    }
  }
  return {};
}

void TrainingPass::start_backward() {
  stage_ = Stage::kBackward;
  units_ = resources_.transformer.start_backward(*weights_.base, micro_.batch(), *context_.cache,
                                                 resources_.activations, resources_.dhidden.view(),
                                                 resources_.gradients,
                                                 {resources_.window_tokens, &resources_.carried});
}

}  // namespace tidemill::engines
