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
  EXPECT_EQ(sink.error(9), "sample 9: the row has no reference answer (key `answer`)");
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
  EXPECT_EQ(last.message().rfind("command: ", 0), 0U) << last.message();
  ASSERT_EQ(sink.count(), 100U);
  for (std::uint64_t id = 0; id < 100; ++id) {
    EXPECT_NE(sink.error(id), "");
  }
  EXPECT_EQ(engine->stats().starts, 2U);
  EXPECT_EQ(engine->step(Duration::zero()).code(), Errc::kUnavailable) << "giving up is permanent";
  EXPECT_EQ(engine->submit(make_request(100, "42"), sink).code(), Errc::kUnavailable);
}

/// A part whose results, refusals, failures and counts are given by the test.
class ScriptedEngine final : public RewardEngine {
public:
  Status submit(RewardRequest request, RewardSink& sink) override {
    TIDEMILL_RETURN_IF_ERROR(refusal);
    queued.emplace_back(request.id, &sink);
    return {};
  }
  [[nodiscard]] bool has_work() const override { return !queued.empty(); }
  /// Delivers the oldest result.
  Status step(Duration /*patience*/) override {
    const auto [id, sink] = queued.front();
    queued.erase(queued.begin());
    RewardResult result;
    result.id = id;
    result.reward = reward;
    result.error = error;
    sink->on_reward(std::move(result));
    return failure;
  }
  [[nodiscard]] RewardStats stats() const override { return counts; }

  Status refusal;
  Status failure;
  double reward = 1.0;
  std::string error;
  RewardStats counts;
  std::vector<std::pair<SampleId, RewardSink*>> queued;
};

/// A weighted sum of two scripted parts, of which the test keeps references.
struct ScriptedSum {
  ScriptedSum() {
    auto a = std::make_unique<ScriptedEngine>();
    auto b = std::make_unique<ScriptedEngine>();
    first = a.get();
    second = b.get();
    std::vector<RewardPart> parts;
    parts.push_back({"a", 2.0, std::move(a)});
    parts.push_back({"b", 3.0, std::move(b)});
    engine = make_reward_sum(std::move(parts));
  }

  ScriptedEngine* first = nullptr;
  ScriptedEngine* second = nullptr;
  std::unique_ptr<RewardEngine> engine;
};

TEST(WeightedRewardEngine, ASampleThatAPartCannotScoreHasNoReward) {
  ScriptedSum sum;
  sum.second->error = "no number";
  std::vector<RewardResult> results;
  class Keeping final : public RewardSink {
  public:
    explicit Keeping(std::vector<RewardResult>& kept) : kept_(kept) {}
    void on_reward(RewardResult result) override { kept_.push_back(std::move(result)); }

  private:
    std::vector<RewardResult>& kept_;
  };
  Keeping sink(results);
  ASSERT_TRUE(sum.engine->submit(make_request(1, "x"), sink).ok());
  ASSERT_TRUE(sum.engine->step(Duration::zero()).ok());
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].error, "b: no number");
  EXPECT_EQ(results[0].reward, 0.0) << "not the reward of the other part";
  EXPECT_TRUE(results[0].parts.empty());
  // The next sample is scored as if nothing had happened.
  sum.second->error.clear();
  ASSERT_TRUE(sum.engine->submit(make_request(2, "x"), sink).ok());
  ASSERT_TRUE(sum.engine->step(Duration::zero()).ok());
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[1].error, "");
  EXPECT_EQ(results[1].reward, 5.0);
  EXPECT_EQ(results[1].parts, (std::vector<double>{1.0, 1.0}));
}

TEST(WeightedRewardEngine, ARefusalByALaterPartBecomesTheErrorOfTheSample) {
  ScriptedSum sum;
  RecordingSink sink;
  sum.second->refusal = invalid_argument("full");
  ASSERT_TRUE(sum.engine->submit(make_request(1, "x"), sink).ok());
  EXPECT_TRUE(sum.engine->has_work());
  ASSERT_TRUE(sum.engine->step(Duration::zero()).ok());
  ASSERT_EQ(sink.count(), 1U);
  EXPECT_EQ(sink.error(1), "b: full");
  EXPECT_FALSE(sum.engine->has_work());
  // A refusal by the first part is one of the whole engine.
  sum.first->refusal = invalid_argument("closed");
  EXPECT_EQ(sum.engine->submit(make_request(2, "x"), sink).message(), "a: closed");
  EXPECT_FALSE(sum.engine->has_work());
  sum.first->refusal = {};
  sum.second->refusal = {};
  ASSERT_TRUE(sum.engine->submit(make_request(2, "x"), sink).ok());
  ASSERT_TRUE(sum.engine->step(Duration::zero()).ok());
  EXPECT_EQ(sink.reward(2), 5.0);
}

TEST(WeightedRewardEngine, NamesThePartThatGaveUpFirst) {
  struct Case {
    const char* first;   // the failure of part "a" in this step, or empty
    const char* second;  // that of part "b"
    const char* message;
  };
  for (const Case& c :
       {Case{"gone", "", "a: gone"}, Case{"", "gone", "b: gone"}, Case{"gone", "too", "a: gone"}}) {
    ScriptedSum sum;
    RecordingSink sink;
    ASSERT_TRUE(sum.engine->submit(make_request(1, "x"), sink).ok());
    ASSERT_TRUE(sum.engine->submit(make_request(2, "x"), sink).ok());
    const auto set = [](Status& failure, const std::string& message) {
      failure = message.empty() ? Status() : Status(Errc::kUnavailable, message);
    };
    set(sum.first->failure, c.first);
    set(sum.second->failure, c.second);
    EXPECT_EQ(sum.engine->step(Duration::zero()).message(), c.message);
    // Whatever fails later is not the cause.
    set(sum.first->failure, "later");
    set(sum.second->failure, "later");
    EXPECT_EQ(sum.engine->step(Duration::zero()).message(), c.message);
    EXPECT_EQ(sum.engine->submit(make_request(3, "x"), sink).message(), c.message);
    EXPECT_EQ(sink.count(), 2U);
  }
}

// Parts deliver in different orders: each result reaches its own sample.
TEST(WeightedRewardEngine, PartsMayDeliverAtDifferentTimes) {
  ScriptedSum sum;
  RecordingSink sink;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(sum.engine->submit(make_request(id, "x"), sink).ok());
  }
  for (const double reward : {10.0, 20.0, 30.0}) {
    sum.first->reward = reward;
    ASSERT_TRUE(sum.first->step(Duration::zero()).ok());
    EXPECT_EQ(sink.count(), 0U);
  }
  std::swap(sum.second->queued[0], sum.second->queued[2]);
  for (const double reward : {3.0, 2.0, 1.0}) {
    sum.second->reward = reward;
    ASSERT_TRUE(sum.second->step(Duration::zero()).ok());
  }
  EXPECT_EQ(sink.order(), (std::vector<std::uint64_t>{3, 2, 1}));
  EXPECT_EQ(sink.reward(1), 2.0 * 10.0 + 3.0 * 1.0);
  EXPECT_EQ(sink.reward(2), 2.0 * 20.0 + 3.0 * 2.0);
  EXPECT_EQ(sink.reward(3), 2.0 * 30.0 + 3.0 * 3.0);
}

TEST(WeightedRewardEngine, CountsTheEventsOfAllParts) {
  ScriptedSum sum;
  sum.first->counts = {
      .starts = 1, .ends = 2, .hangs = 3, .bad_replies = 4, .unknown_ids = 5, .garbage_lines = 6};
  sum.second->counts = {.starts = 10,
                        .ends = 20,
                        .hangs = 30,
                        .bad_replies = 40,
                        .unknown_ids = 50,
                        .garbage_lines = 60};
  const RewardStats stats = sum.engine->stats();
  EXPECT_EQ(stats.starts, 11U);
  EXPECT_EQ(stats.ends, 22U);
  EXPECT_EQ(stats.hangs, 33U);
  EXPECT_EQ(stats.bad_replies, 44U);
  EXPECT_EQ(stats.unknown_ids, 55U);
  EXPECT_EQ(stats.garbage_lines, 66U);
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
