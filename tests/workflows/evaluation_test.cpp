// SPDX-License-Identifier: Apache-2.0
// Tests the comparison of the models before and after a run.
#include "workflows/rl/evaluation.hpp"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workflows/actor_system.hpp"

namespace tidemill::workflows {
namespace {

const std::string kExamples = TIDEMILL_SOURCE_DIR "/examples/";

class EvaluationTest : public ::testing::Test {
protected:
  EvaluationTest() {
    options_.model.path = kExamples + "models/arithmetic";
    options_.rollout.max_new_tokens = 2;
    eval_ = directory_.path() / "eval.jsonl";
    options_.data.eval = {eval_};
  }
  ModelScores evaluate() {
    const RewardContext context{{actor_system_.system(), clock_, directory_.path()}, extensions_};
    auto scores =
        evaluate_model(options_, {options_.model.path, {}, "2026-01-31T12:00:00"}, context);
    EXPECT_TRUE(scores.ok()) << scores.status().to_string();
    return std::move(scores).value();
  }

  test::TemporaryDirectory directory_;
  std::string eval_;
  ActorSystem actor_system_;
  SystemClock clock_;
  Extensions extensions_;
  RlOptions options_;
};

// A reward program gets the members of the row, as in the run.
TEST_F(EvaluationTest, RewardProgramsGetTheWholeRow) {
  std::ofstream(eval_) << R"({"prompt": "1+2=", "answer": "3", "points": 7})" << '\n'
                       << R"({"prompt": "2+2=", "answer": "4", "points": 9})" << '\n';
  const std::string program = directory_.path() / "reward.py";
  std::ofstream(program) << "import json, sys\n"
                            "for line in sys.stdin:\n"
                            "  request = json.loads(line)\n"
                            "  reward = request['points'] + float(request['answer']) / 10\n"
                            "  print(json.dumps({'id': request['id'], 'reward': reward}), "
                            "flush=True)\n";
  RewardOptions reward;
  reward.scoring = OneOf{"command", CommandReward{{"python3", program}}};
  options_.reward = {reward};
  options_.eval.samples = 2;
  const ModelScores scores = evaluate();
  EXPECT_EQ(scores.failed, 0U);
  std::vector<double> rewards;
  for (const ScoredResponse& scored : scores.responses) {
    rewards.push_back(scored.reward);
  }
  EXPECT_THAT(rewards, ::testing::ElementsAre(7.3, 7.3, 9.4, 9.4));
  EXPECT_DOUBLE_EQ(scores.mean_at_k, 8.35);
  EXPECT_EQ(scores.pass_at_k, 1.0);
}

}  // namespace
}  // namespace tidemill::workflows
