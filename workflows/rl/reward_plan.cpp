// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/reward_plan.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace tidemill::workflows {
namespace {

// Replaces a reward engine that could not be made again. `submit` and `step` return the reason, as
// `kUnavailable`: the engine was made before, so another attempt may succeed.
class UnavailableReward final : public engines::RewardEngine {
public:
  explicit UnavailableReward(const Status& why) : why_(Errc::kUnavailable, why.message()) {}
  Status submit(engines::RewardRequest /*request*/, engines::RewardSink& /*sink*/) override {
    return why_;
  }
  bool has_work() const override { return false; }
  Status step(Duration /*patience*/) override { return why_; }

private:
  Status why_;
};

}  // namespace

RewardRoleOptions reward_role_options(
    const RlOptions& options, const actors::TextCodec& codec,
    std::function<Result<std::unique_ptr<engines::RewardEngine>>()> make) {
  RewardRoleOptions role;
  role.workers = num_workers(options.placement.reward);
  // One worker takes a whole batch. Several share it.
  const auto batch =
      static_cast<std::uint32_t>(options.train.prompts_per_step * options.rollout.group_size);
  role.max_in_flight = std::max(1U, batch / role.workers);
  role.make_reward = [make = std::move(make)](std::optional<std::uint32_t>) {
    auto engine = make();
    return engine.ok() ? std::shared_ptr<engines::RewardEngine>(std::move(engine).value())
                       : std::make_shared<UnavailableReward>(engine.status());
  };
  role.decode = [codec](const auto& ids) { return codec.decode(ids); };
  return role;
}

}  // namespace tidemill::workflows
