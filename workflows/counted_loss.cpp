// SPDX-License-Identifier: Apache-2.0
#include "workflows/counted_loss.hpp"

#include <utility>

namespace tidemill::workflows {
namespace {

class CountedLoss final : public engines::TokenLoss {
public:
  CountedLoss(std::unique_ptr<engines::TokenLoss> loss, std::shared_ptr<MinibatchShare> share)
      : loss_(std::move(loss)), share_(std::move(share)) {}

  Status evaluate(std::span<const engines::LossSequence> sequences,
                  engines::LossSums& sums) override {
    TIDEMILL_RETURN_IF_ERROR(loss_->evaluate(sequences, sums));
    share_->done += sequences.size();
    return {};
  }
  bool is_token_local() const override { return loss_->is_token_local(); }
  Status token_gradients(const engines::LossTokens& tokens) override {
    return loss_->token_gradients(tokens);
  }

private:
  std::unique_ptr<engines::TokenLoss> loss_;
  std::shared_ptr<MinibatchShare> share_;
};

}  // namespace

actors::LossFactory counted_losses(actors::LossFactory make_loss,
                                   std::shared_ptr<MinibatchShare> share) {
  return [make_loss = std::move(make_loss),
          share = std::move(share)](std::span<const engines::TrainSequence> minibatch)
             -> Result<std::unique_ptr<engines::TokenLoss>> {
    TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<engines::TokenLoss> loss, make_loss(minibatch));
    share->done = 0;
    share->total = minibatch.size();
    return std::unique_ptr<engines::TokenLoss>(new CountedLoss(std::move(loss), share));
  };
}

}  // namespace tidemill::workflows
