// SPDX-License-Identifier: Apache-2.0
// Tests that reward engines have the settings of their keys, and that messages name the key.
#include "workflows/rewards.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workflows/actor_system.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Keeps the only result.
class Sink final : public engines::RewardSink {
public:
  void on_reward(engines::RewardResult result) override { results.push_back(std::move(result)); }
  std::vector<engines::RewardResult> results;
};

// A kind that an embedding program has described, but not registered.
struct Unregistered {};

RewardOptions of(OneOf scoring, std::optional<std::string> name = {}, double weight = 1.0) {
  return {std::move(scoring), std::move(name), weight};
}

class RewardsTest : public ::testing::Test {
protected:
  [[nodiscard]] Result<std::unique_ptr<engines::RewardEngine>> make(
      const std::vector<RewardOptions>& rewards) {
    return make_rewards(rewards,
                        {{actor_system_.system(), clock_, directory_.path()}, extensions_});
  }
  [[nodiscard]] double score(const std::vector<RewardOptions>& rewards, const std::string& response,
                             const std::string& reference) {
    auto engine = make(rewards);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    engines::RewardRequest request;
    request.response = response;
    request.reference_answer = reference;
    Sink sink;
    EXPECT_TRUE(engine.value()->submit(request, sink).ok());
    while (engine.value()->has_work()) {
      EXPECT_TRUE(engine.value()->step(std::chrono::milliseconds(10)).ok());
    }
    EXPECT_EQ(sink.results.size(), 1U);
    return sink.results.empty() ? -99.0 : sink.results[0].reward;
  }

  test::TemporaryDirectory directory_;
  ActorSystem actor_system_;
  SystemClock clock_;
  Extensions extensions_;
};

TEST_F(RewardsTest, EachKindScoresWithItsOwnSettings) {
  const RewardOptions exact = of({"exact_match", ExactMatchReward{}});
  const RewardOptions number = of({"number", NumberReward{0.5}});
  const RewardOptions regex = of({"regex", RegexReward{"^<(?<answer>.*)>$"}});
  EXPECT_EQ(score({exact}, "3", "3"), 1.0);
  EXPECT_EQ(score({exact}, "3.0", "3"), 0.0);
  EXPECT_EQ(score({number}, "3.5", "3"), 1.0);
  EXPECT_EQ(score({number}, "3.75", "3"), 0.0);
  EXPECT_EQ(score({regex}, "<3>", "3"), 1.0);
  EXPECT_EQ(score({regex}, "3", "3"), 0.0);
}

TEST_F(RewardsTest, TheSumHasTheWeights) {
  const auto parts = [](double first, double second) {
    return std::vector{of({"exact_match", ExactMatchReward{}}, {}, first),
                       of({"number", NumberReward{0.5}}, {}, second)};
  };
  EXPECT_EQ(score(parts(2.0, 0.25), "3", "3"), 2.25);
  EXPECT_EQ(score(parts(2.0, 0.25), "3.5", "3"), 0.25);
  EXPECT_EQ(score({of({"exact_match", ExactMatchReward{}}, {}, 4.0)}, "3", "3"), 4.0);
}

TEST_F(RewardsTest, OnlyASumHasParts) {
  const RewardOptions plain = of({"number", NumberReward{}});
  const RewardOptions named = of({"number", NumberReward{}}, "close");
  EXPECT_THAT(part_names({plain}), IsEmpty());
  EXPECT_THAT(part_names({named}), IsEmpty());
  EXPECT_THAT(part_names({of({"number", NumberReward{}}, {}, 0.5)}), ElementsAre("number"));
  EXPECT_THAT(part_names({plain, named}), ElementsAre("number", "close"));
}

TEST_F(RewardsTest, MessagesNameTheKey) {
  const RewardOptions good = of({"number", NumberReward{}});
  const RewardOptions bad = of({"regex", RegexReward{"("}});
  const RewardOptions missing = of({"command", CommandReward{{"tidemill-no-such-program"}}});
  const RewardOptions unknown = of({"mine", Unregistered{}});
  EXPECT_THAT(make({bad}).status().message(), StartsWith("reward.pattern: offset 1: "));
  EXPECT_THAT(make({good, bad}).status().message(), StartsWith("reward[1].pattern: offset 1: "));
  EXPECT_THAT(make({bad, good}).status().message(), StartsWith("reward[0].pattern: offset 1: "));
  EXPECT_EQ(make({missing}).status().message(),
            "reward.command: cannot run `tidemill-no-such-program`: not found in PATH");
  EXPECT_EQ(make({good, unknown}).status().message(),
            "reward[1].kind: no engine is registered for mine");
  EXPECT_EQ(make_reference_answer_check({bad}).status().message(), make({bad}).status().message());
  EXPECT_EQ(make_reference_answer_check({good, bad}).status().message(),
            make({good, bad}).status().message());
}

TEST_F(RewardsTest, ProgramsOfASumHaveFilesOfTheirOwn) {
  const auto program = [](std::optional<std::string> name) {
    return of({"command", CommandReward{{"cat"}}}, std::move(name));
  };
  ASSERT_TRUE(make({program({})}).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "reward-stderr.txt"));
  ASSERT_TRUE(make({program("a"), program("b")}).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "reward-a-stderr.txt"));
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "reward-b-stderr.txt"));
}

TEST_F(RewardsTest, AReferenceAnswerMustSuitAllRewards) {
  const RewardOptions exact = of({"exact_match", ExactMatchReward{}});
  const RewardOptions number = of({"number", NumberReward{}});
  const RewardOptions program = of({"command", CommandReward{{"cat"}}});
  EXPECT_FALSE(make_reference_answer_check({program}).value()) << "a program accepts every answer";
  const auto problem = [](const std::vector<RewardOptions>& rewards, const std::string& answer) {
    return make_reference_answer_check(rewards).value()(answer).message();
  };
  EXPECT_EQ(problem({exact}, "three"), "");
  EXPECT_EQ(problem({exact, number}, "3"), "");
  const std::string no_number = "the row's reference answer has no number";
  EXPECT_EQ(problem({number}, "three"), no_number);
  EXPECT_EQ(problem({exact, number}, "three"), no_number);
  EXPECT_EQ(problem({program, number, exact}, "three"), no_number);
}

}  // namespace
}  // namespace tidemill::workflows
