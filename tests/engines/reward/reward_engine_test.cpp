// SPDX-License-Identifier: Apache-2.0
// Reward engines that apply rules, and their weighted sums.
#include "tests/engines/reward/reward_fixture.hpp"

namespace tidemill::engines {
namespace {

std::unique_ptr<RewardEngine> make(const RewardOptions& options, const Clock& clock) {
  auto made = make_reward_engine(options, clock);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(made).value();
}

TEST(RuleRewardEngine, ScoresEveryRequestOnceInOrder) {
  const ManualClock clock;
  const auto engine = make(RewardOptions{}, clock);
  RecordingSink sink;
  EXPECT_FALSE(engine->has_work());
  for (std::uint64_t id = 0; id < 200; ++id) {
    ASSERT_TRUE(engine->submit(make_request(id, id % 3 == 0 ? "42" : "41"), sink).ok());
  }
  ASSERT_TRUE(engine->step(Duration::zero()).ok());
  EXPECT_LT(sink.count(), 200U) << "a step is bounded";
  ASSERT_TRUE(step_until(*engine, [&] { return !engine->has_work(); }));
  ASSERT_EQ(sink.count(), 200U);
  for (std::uint64_t id = 0; id < 200; ++id) {
    EXPECT_EQ(sink.reward(id), id % 3 == 0 ? 1.0 : 0.0);
    EXPECT_EQ(sink.order()[id], id);
  }
}

TEST(RuleRewardEngine, NamesTheSampleThatItCannotScore) {
  const ManualClock clock;
  const auto engine = make(RewardOptions{}, clock);
  RecordingSink sink;
  RewardRequest bare = make_request(9, "42");
  bare.reference_answer = "";
  ASSERT_TRUE(engine->submit(bare, sink).ok());
  ASSERT_TRUE(engine->step(Duration::zero()).ok());
  EXPECT_EQ(sink.error(9), "sample 9: the row has no reference answer");
}

TEST(RuleRewardEngine, ASinkMaySubmitAgain) {
  class Resubmitting final : public RewardSink {
  public:
    explicit Resubmitting(RewardEngine& engine) : engine_(engine) {}
    void on_reward(RewardResult result) override {
      ++seen;
      if (seen < 10) {
        EXPECT_TRUE(engine_.submit(make_request(result.id.value, "42"), *this).ok());
      }
    }
    int seen = 0;

  private:
    RewardEngine& engine_;
  };
  const ManualClock clock;
  const auto engine = make(RewardOptions{}, clock);
  Resubmitting sink(*engine);
  ASSERT_TRUE(engine->submit(make_request(1, "42"), sink).ok());
  ASSERT_TRUE(step_until(*engine, [&] { return !engine->has_work(); }));
  EXPECT_EQ(sink.seen, 10);
}

TEST(WeightedRewardEngine, SumsItsParts) {
  const ManualClock clock;
  RewardOptions number;
  number.kind = RewardKind::kNumber;
  RewardOptions form;
  form.kind = RewardKind::kRegex;
  form.pattern = "^answer: ";
  std::vector<RewardPart> parts;
  parts.push_back({"sum", 2.0, make(number, clock)});
  parts.push_back({"form", -0.25, make(form, clock)});
  const auto engine = make_reward_sum(std::move(parts));
  RecordingSink sink;
  ASSERT_TRUE(engine->submit(make_request(1, "answer: 42"), sink).ok());
  ASSERT_TRUE(engine->submit(make_request(2, "42"), sink).ok());
  ASSERT_TRUE(engine->submit(make_request(3, "answer: 41"), sink).ok());
  RewardRequest bare = make_request(4, "answer: 42");
  bare.reference_answer = "none";
  ASSERT_TRUE(engine->submit(bare, sink).ok());
  ASSERT_TRUE(step_until(*engine, [&] { return !engine->has_work(); }));
  EXPECT_EQ(sink.reward(1), 1.75);
  EXPECT_EQ(sink.reward(2), 2.0);
  EXPECT_EQ(sink.reward(3), -0.25);
  EXPECT_EQ(sink.parts(1), (std::vector<double>{1.0, 1.0}));
  EXPECT_EQ(sink.parts(2), (std::vector<double>{1.0, 0.0}));
  EXPECT_EQ(sink.parts(3), (std::vector<double>{0.0, 1.0}));
  EXPECT_EQ(sink.error(4), "sum: sample 4: the row's reference answer has no number");
  EXPECT_TRUE(sink.parts(4).empty());
}

TEST(WeightedRewardEngine, APartThatGivesUpStillDeliversAnErrorForEverySample) {
  const ManualClock clock;
  RewardOptions program;
  program.kind = RewardKind::kCommand;
  program.command = {"true"};
  program.max_failures_in_a_row = 2;
  program.first_backoff = Duration::zero();
  std::vector<RewardPart> parts;
  parts.push_back({"exact_match", 1.0, make(RewardOptions{}, clock)});
  parts.push_back({"command", 1.0, make(program, clock)});
  const auto engine = make_reward_sum(std::move(parts));
  RecordingSink sink;
  for (std::uint64_t id = 0; id < 100; ++id) {
    ASSERT_TRUE(engine->submit(make_request(id, "42"), sink).ok());
  }
  Status last;
  for (int i = 0; i < 100'000 && engine->has_work(); ++i) {
    last = engine->step(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(last.code(), Errc::kUnavailable) << last.to_string();
  ASSERT_EQ(sink.count(), 100U);
  for (std::uint64_t id = 0; id < 100; ++id) {
    EXPECT_NE(sink.error(id), "");
  }
  EXPECT_EQ(engine->stats().starts, 2U);
  EXPECT_EQ(engine->step(Duration::zero()).code(), Errc::kUnavailable) << "giving up is permanent";
  EXPECT_EQ(engine->submit(make_request(100, "42"), sink).code(), Errc::kUnavailable);
}

TEST(MakeRewardEngine, NamesTheWrongOption) {
  const ManualClock clock;
  RewardOptions options;
  options.kind = RewardKind::kRegex;
  EXPECT_EQ(make_reward_engine(options, clock).status().message(), "pattern: is missing");
  options.kind = RewardKind::kCommand;
  EXPECT_EQ(make_reward_engine(options, clock).status().message(), "command: is missing");
  options.command = {"cat"};
  options.max_in_flight = 0;
  EXPECT_EQ(make_reward_engine(options, clock).status().message(),
            "max_in_flight: must be above 0");
  options.max_in_flight = 1;
  options.timeout = Duration::zero();
  EXPECT_EQ(make_reward_engine(options, clock).status().message(), "timeout: must be above 0");
  options.timeout = std::chrono::seconds(1);
  options.stderr_path = "/nowhere/log";
  EXPECT_EQ(make_reward_engine(options, clock).status().message(),
            "stderr_path: cannot open `/nowhere/log`: No such file or directory");
}

}  // namespace
}  // namespace tidemill::engines
