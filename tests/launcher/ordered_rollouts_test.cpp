// SPDX-License-Identifier: Apache-2.0
// Runs lines with an engine that ends the newest request first: the order of the results, how many
// lines are unfinished at a time, and lines that fail.
#include "launcher/models/ordered_rollouts.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill::launcher {
namespace {

using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using ::testing::ElementsAre;

// Ends one request in each iteration: the one that was submitted last.
class NewestFirstEngine final : public engines::RolloutEngine {
public:
  Status submit(RolloutRequest request, engines::RolloutSink& sink) override {
    running_.emplace_back(request.id, &sink);
    return {};
  }
  void cancel(SampleId id) override {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [id](const auto& entry) { return entry.first == id; });
    if (found != running_.end()) {
      engines::RolloutSink& sink = *found->second;
      running_.erase(found);
      sink.on_rollout(result_of(id, FinishReason::kCancelled));
    }
  }
  Status load(engines::Snapshot /*snapshot*/, engines::WeightArrival /*arrival*/) override {
    return {};
  }
  [[nodiscard]] PolicyVersion serving_version() const override { return {}; }
  [[nodiscard]] bool has_work() const override { return !running_.empty(); }
  Result<engines::StepReport> step(const engines::StepBudget& /*budget*/) override {
    const auto [id, sink] = running_.back();
    running_.pop_back();
    const bool fails = failing && id.value == *failing;
    sink->on_rollout(result_of(id, fails ? FinishReason::kFailed : FinishReason::kStop));
    return engines::StepReport{};
  }

  std::optional<std::uint64_t> failing;

private:
  static RolloutResult result_of(SampleId id, FinishReason reason) {
    RolloutResult result;
    result.id = id;
    result.response_ids = {static_cast<std::int32_t>(100 + id.value)};
    result.finish_reason = reason;
    result.error = reason == FinishReason::kFailed
                       ? "logits are not finite sample_id=" + std::to_string(id.value)
                       : "";
    return result;
  }

  std::vector<std::pair<SampleId, engines::RolloutSink*>> running_;
};

class OrderedRolloutsTest : public ::testing::Test {
protected:
  // Runs `count` lines. Each request has a prompt of 2 tokens and at most 8 new ones.
  Status run(int count) {
    std::ofstream file(path_);
    for (int i = 0; i < count; ++i) {
      file << "line\n";
    }
    file.close();
    const auto lines = LineReader::open(path_).value();
    RolloutWork work;
    work.request = [this](const InputLine& line) -> Result<RolloutRequest> {
      if (invalid_ == line.index) {
        return Status(Errc::kInvalidArgument, line.location + ": not a prompt");
      }
      ++started_;
      most_unfinished_ = std::max(most_unfinished_, started_ - finished_.size());
      RolloutRequest request;
      request.prompt_ids = {1, 2};
      request.max_new_tokens = 8;
      request.prompt_logits = logits_;
      return request;
    };
    work.finish = [this](std::uint64_t index, const RolloutResult& result) -> Status {
      EXPECT_THAT(result.response_ids, ElementsAre(static_cast<std::int32_t>(100 + index)));
      finished_.push_back(index);
      return {};
    };
    return run_in_order(engine_, *lines, window_, work);
  }

  const test::TemporaryDirectory folder_;
  const std::string path_ = folder_.path() / "lines";
  NewestFirstEngine engine_;
  RolloutWindow window_;
  bool logits_ = false;
  std::optional<std::uint64_t> invalid_;  // the line whose request cannot be made
  std::size_t started_ = 0;
  std::size_t most_unfinished_ = 0;
  std::vector<std::uint64_t> finished_;
};

TEST_F(OrderedRolloutsTest, ResultsAreFinishedInTheOrderOfTheLines) {
  window_.requests = 4;
  ASSERT_TRUE(run(10).ok());
  EXPECT_THAT(finished_, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_FALSE(engine_.has_work());
}

// A line whose result waits for that of an earlier line is unfinished.
TEST_F(OrderedRolloutsTest, TheNumberOfUnfinishedLinesIsBounded) {
  window_.requests = 4;
  ASSERT_TRUE(run(10).ok());
  EXPECT_EQ(most_unfinished_, 4U);
}

TEST_F(OrderedRolloutsTest, TheValuesOfUnfinishedLinesAreBounded) {
  window_.values = 30;
  ASSERT_TRUE(run(10).ok());
  EXPECT_EQ(finished_.size(), 10U);
  EXPECT_EQ(most_unfinished_, 3U) << "of 10 values each";
  most_unfinished_ = started_ = 0;
  finished_.clear();
  logits_ = true;
  window_.vocab_size = 10;
  window_.values = 60;
  ASSERT_TRUE(run(10).ok());
  EXPECT_EQ(most_unfinished_, 2U) << "of 10 + 2 * 10 values each";
}

TEST_F(OrderedRolloutsTest, ALineMayExceedTheValuesAlone) {
  window_.values = 1;
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(finished_.size(), 3U);
  EXPECT_EQ(most_unfinished_, 1U);
}

TEST_F(OrderedRolloutsTest, AFailedLineIsNamedAfterTheLinesBeforeItAreFinished) {
  window_.requests = 6;
  engine_.failing = 2;
  EXPECT_EQ(run(10).message(), path_ + ":3: logits are not finite");
  EXPECT_THAT(finished_, ElementsAre(0, 1));
  EXPECT_FALSE(engine_.has_work()) << "the engine would write to a sink that is gone";
}

TEST_F(OrderedRolloutsTest, AnInvalidLineIsNamedAfterTheLinesBeforeItAreFinished) {
  invalid_ = 3;
  EXPECT_EQ(run(10).message(), path_ + ":4: not a prompt");
  EXPECT_THAT(finished_, ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace tidemill::launcher
