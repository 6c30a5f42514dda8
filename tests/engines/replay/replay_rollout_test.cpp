// SPDX-License-Identifier: Apache-2.0
// Tests that the replay rollout engine limits the time of requests and streams tokens as the
// rollout view does.
#include <chrono>
#include <map>

#include <gtest/gtest.h>

#include "engines/replay/factory.hpp"
#include "tests/support/streamed_tokens.hpp"

namespace tidemill::engines {
namespace {

using namespace std::chrono_literals;

class ReplayRolloutTest : public ::testing::Test, public RolloutSink {
protected:
  ReplayRolloutTest() {
    options_.decode_time = 20ms;
    options_.length_of = [](SampleId) { return 8U; };
    options_.clock = &clock_;
    engine_ = make_replay_rollout_engine(options_, replay_initial_snapshot(1));
  }
  void on_tokens(const RolloutTokens& tokens) override { streamed_.take(tokens); }
  void on_rollout(RolloutResult result) override {
    EXPECT_EQ(streamed_.end(result), "");
    results_[result.id.value] = std::move(result);
  }

  static RolloutRequest request(std::uint64_t id, Duration limit) {
    RolloutRequest request;
    request.id = {id};
    request.prompt_ids = {1};
    request.max_new_tokens = 8;
    request.time_limit = limit;
    return request;
  }
  // Runs the engine until it has no work, in virtual time.
  void run() {
    while (engine_->has_work()) {
      clock_.advance(engine_->step({}).value().virtual_duration);
    }
  }

  ManualClock clock_;
  ReplayOptions options_;
  std::unique_ptr<RolloutEngine> engine_;
  std::map<std::uint64_t, RolloutResult> results_;
  test::StreamedTokens streamed_;
};

TEST_F(ReplayRolloutTest, ARequestPastItsLimitReturnsItsTokens) {
  ASSERT_TRUE(engine_->submit(request(0, 50ms), *this).ok());
  ASSERT_TRUE(engine_->submit(request(1, 160ms), *this).ok());
  ASSERT_TRUE(engine_->submit(request(2, Duration(0)), *this).ok());
  run();
  EXPECT_EQ(results_[0].finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(results_[0].error, "exceeded its time limit");
  EXPECT_EQ(results_[0].response_ids.size(), 3U);  // of iterations at 0, 20 and 40 ms
  EXPECT_EQ(results_[1].finish_reason, FinishReason::kLength);
  EXPECT_EQ(results_[2].finish_reason, FinishReason::kLength);
}

TEST_F(ReplayRolloutTest, TheLimitCountsFromTheFirstIteration) {
  RolloutRequest waits = request(0, 160ms);
  waits.min_step = 1;
  ASSERT_TRUE(engine_->submit(waits, *this).ok());
  clock_.advance(1h);
  EXPECT_FALSE(engine_->has_work());
  Snapshot next = replay_initial_snapshot(2);
  next.version.step = 1;
  ASSERT_TRUE(engine_->load(next, WeightArrival::kFinish).ok());
  run();
  EXPECT_EQ(results_[0].finish_reason, FinishReason::kLength);
}

TEST_F(ReplayRolloutTest, TokensAreStreamedBeforeACancel) {
  ASSERT_TRUE(engine_->submit(request(0, 50ms), *this).ok());
  ASSERT_TRUE(engine_->submit(request(1, Duration(0)), *this).ok());
  ASSERT_TRUE(engine_->step({}).ok());  // three iterations, up to the limit of the first
  EXPECT_EQ(streamed_.num_calls(), 2U);
  engine_->cancel({1});
  EXPECT_EQ(results_[1].finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(results_[1].response_ids.size(), 3U);
}

TEST_F(ReplayRolloutTest, TokensDependOnTheDrawKeyAndNotOnTheId) {
  RolloutRequest renamed = request(1, Duration(0));
  renamed.draw_key = 0;
  ASSERT_TRUE(engine_->submit(request(0, Duration(0)), *this).ok());
  ASSERT_TRUE(engine_->submit(renamed, *this).ok());
  ASSERT_TRUE(engine_->submit(request(2, Duration(0)), *this).ok());
  run();
  EXPECT_EQ(results_[0].response_ids, results_[1].response_ids);
  EXPECT_NE(results_[0].response_ids, results_[2].response_ids);
}

TEST_F(ReplayRolloutTest, ALimitNeedsAClock) {
  const auto engine = make_replay_rollout_engine({}, replay_initial_snapshot(1));
  EXPECT_EQ(engine->submit(request(0, 1s), *this).message(),
            "time_limit: this engine has no clock sample_id=0");
}

}  // namespace
}  // namespace tidemill::engines
