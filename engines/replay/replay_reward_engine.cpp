// SPDX-License-Identifier: Apache-2.0
// A reward engine that scores by hash.
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engines/replay/factory.hpp"

namespace tidemill::engines {
namespace {

class ReplayRewardEngine final : public RewardEngine {
public:
  ReplayRewardEngine(std::uint64_t seed, std::uint64_t fail_one_in)
      : seed_(seed), fail_one_in_(fail_one_in) {}

  Status submit(RewardRequest request, RewardSink& sink) override {
    queue_.push_back({std::move(request), &sink});
    return {};
  }

  bool has_work() const override { return !queue_.empty(); }

  Status step(Duration /*patience*/) override {
    for (const Item& item : std::exchange(queue_, {})) {
      RewardResult result;
      result.id = item.request.id;
      if (fail_one_in_ != 0 && keyed_bits(seed_, item.request.id.value, 0) % fail_one_in_ == 0) {
        result.error = "cannot be scored";
      } else {
        std::uint64_t bits = seed_;
        for (const char c : item.request.response) {
          bits = keyed_bits(bits, static_cast<unsigned char>(c), 1);
        }
        result.reward = static_cast<double>(bits & 1U);
      }
      item.sink->on_reward(std::move(result));
    }
    return {};
  }

private:
  struct Item {
    RewardRequest request;
    RewardSink* sink;
  };
  std::uint64_t seed_;
  std::uint64_t fail_one_in_;
  std::vector<Item> queue_;
};

}  // namespace

std::unique_ptr<RewardEngine> make_replay_reward_engine(std::uint64_t seed,
                                                        std::uint64_t fail_one_in) {
  return std::make_unique<ReplayRewardEngine>(seed, fail_one_in);
}

}  // namespace tidemill::engines
