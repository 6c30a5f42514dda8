// SPDX-License-Identifier: Apache-2.0
#include "workflows/counted_loss.hpp"

#include <utility>

namespace tidemill::workflows {
namespace {

class CountedLoss final : public engines::TokenLoss {
public:
  CountedLoss(std::unique_ptr<engines::TokenLoss> loss, std::shared_ptr<MinibatchProgress> progress)
      : loss_(std::move(loss)), progress_(std::move(progress)) {}

  Status evaluate(std::span<const engines::LossSequence> sequences,
                  engines::LossSums& sums) override {
    TIDEMILL_RETURN_IF_ERROR(loss_->evaluate(sequences, sums));
    progress_->done += sequences.size();
    return {};
  }
  bool is_token_local() const override { return loss_->is_token_local(); }
  Status token_gradients(const engines::LossTokens& tokens) override {
    return loss_->token_gradients(tokens);
  }

private:
  std::unique_ptr<engines::TokenLoss> loss_;
  std::shared_ptr<MinibatchProgress> progress_;
};

}  // namespace

actors::LossFactory counted_losses(actors::LossFactory make_loss,
                                   std::shared_ptr<MinibatchProgress> progress) {
  return [make_loss = std::move(make_loss),
          progress = std::move(progress)](std::span<const engines::TrainSequence> minibatch)
             -> Result<std::unique_ptr<engines::TokenLoss>> {
    TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<engines::TokenLoss> loss, make_loss(minibatch));
    progress->done = 0;
    progress->total = minibatch.size();
    return std::unique_ptr<engines::TokenLoss>(new CountedLoss(std::move(loss), progress));
  };
}

}  // namespace tidemill::workflows
