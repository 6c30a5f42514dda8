// SPDX-License-Identifier: Apache-2.0
// The contract of actors/source/spawn.hpp.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/source/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Returns prompts by draw, up to draw `end`. Every third draw is skipped.
class FakePromptReader final : public actors::PromptReader {
public:
  explicit FakePromptReader(std::uint64_t end) : end_(end) {}
  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    asked.emplace_back(draw, count);
    if (!failure.ok()) {
      return failure;
    }
    std::vector<actors::Prompt> prompts;
    for (; prompts.size() < count && draw < end_; ++draw) {
      if (draw % 3 != 2) {
        prompts.push_back(
            {draw, draw / 10, draw % 10, {static_cast<std::int32_t>(draw)}, "p", "a", "{}"});
      }
    }
    return prompts;
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> asked;
  Status failure;

private:
  std::uint64_t end_;
};

class PromptSourceTest : public ActorTest {
protected:
  void start(std::uint64_t prompts, std::uint64_t first_draw = 0) {
    reader_ = std::make_shared<FakePromptReader>(prompts);
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    keeper_handle_ = keep(spawn_fake_keeper(system(), keeper_));
    actors::PromptSourceDeps deps;
    deps.group_size = 2;
    deps.groups_at_once = 3;
    deps.first_draw = first_draw;
    deps.stream = stream_handle_;
    deps.keeper = keeper_handle_;
    deps.reader = reader_;
    deps.port = &port();
    source_ = keep(actors::spawn_prompt_source(system(), std::move(deps)));
    exit_ = exit_of(source_);
    caf::anon_send(source_, atom::start_v);
    drain();
  }
  void grant(std::uint32_t groups, std::uint64_t first, std::uint64_t min_step = 0) {
    take(keeper_->admissions).reply({groups, first, min_step, ""});
    advance(0s);
  }

  std::shared_ptr<FakePromptReader> reader_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeKeeper> keeper_ = std::make_shared<FakeKeeper>();
  actors::StreamActor stream_handle_;
  actors::KeeperActor keeper_handle_;
  actors::PromptSourceActor source_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(PromptSourceTest, FillsTheGrantedSlotsAndRequestsMore) {
  start(100);
  ASSERT_EQ(keeper_->admissions.size(), 1U);
  EXPECT_EQ(keeper_->admissions.front().request.max_groups, 3U);
  EXPECT_TRUE(stream_->puts.empty());
  grant(2, 0, 5);
  ASSERT_EQ(stream_->puts.size(), 2U);
  const storage::SampleRow& row = stream_->puts[1].rows[1].row;
  EXPECT_EQ(row.id, SampleId{3});  // rows are numbered in the order of admission
  EXPECT_EQ(row.group, GroupId{1});
  EXPECT_EQ(row.index_in_group, 1U);
  EXPECT_EQ(row.group_size, 2U);
  EXPECT_EQ(row.min_step, 5U);
  EXPECT_EQ(row.data_position, 1U);
  ASSERT_EQ(keeper_->admissions.size(), 1U);
  grant(3, 2);
  ASSERT_EQ(stream_->puts.size(), 5U);
  EXPECT_EQ(stream_->puts[2].draw, 3U);  // draw 2 was skipped
  EXPECT_EQ(stream_->puts[4].rows[0].row.id, SampleId{8});
  EXPECT_EQ(reader_->asked[1], (std::pair<std::uint64_t, std::uint32_t>{2, 3}));
}

TEST_F(PromptSourceTest, RequestsAgainIfNoSlotIsGranted) {
  start(100);
  grant(0, 0);
  EXPECT_TRUE(reader_->asked.empty());
  EXPECT_EQ(keeper_->admissions.size(), 1U);
}

TEST_F(PromptSourceTest, ReportsTheNumberOfGroupsWhenTheDataEnds) {
  start(2);
  grant(3, 0);
  EXPECT_EQ(stream_->puts.size(), 2U);
  EXPECT_EQ(stream_->finished, 1);
  EXPECT_EQ(keeper_->finished, (std::vector<std::uint64_t>{2}));
  EXPECT_TRUE(keeper_->admissions.empty());  // no more requests
  EXPECT_FALSE(exit_->has_value());
}

TEST_F(PromptSourceTest, DataThatHasEndedBeforeARestartEndsAgain) {
  start(2, /*first_draw=*/2);
  grant(3, 7);
  EXPECT_TRUE(stream_->puts.empty());
  EXPECT_EQ(stream_->finished, 1);
  EXPECT_EQ(keeper_->finished, (std::vector<std::uint64_t>{7}));
}

TEST_F(PromptSourceTest, DataThatEndsExactlyWithAGrantIsNoticedAtTheNextGrant) {
  start(2);
  grant(2, 0);
  EXPECT_EQ(stream_->finished, 0);
  grant(1, 2);
  EXPECT_EQ(stream_->finished, 1);
  EXPECT_EQ(keeper_->finished, (std::vector<std::uint64_t>{2}));
}

TEST_F(PromptSourceTest, ExitsWithTheErrorOfTheReader) {
  start(100);
  reader_->failure = invalid_argument("train.jsonl:7: no field \"prompt\"");
  grant(1, 0);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);
  EXPECT_EQ((*exit_)->message(), "train.jsonl:7: no field \"prompt\"");
}

TEST_F(PromptSourceTest, ExitsIfTheStreamRefusesAGroup) {
  start(100);
  stream_->failure = invalid_argument("bad group");
  grant(1, 0);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_THAT((*exit_)->message(), HasSubstr("putting a group: bad group"));
}

TEST_F(PromptSourceTest, ExitsIfTheKeeperDies) {
  start(100);
  grant(0, 0);
  kill(keeper_handle_);
  EXPECT_TRUE(run_until([&] { return exit_->has_value(); }));
  EXPECT_THAT((*exit_)->message(), HasSubstr("requesting slots"));
}

TEST_F(PromptSourceTest, ExitsIfTheStreamDies) {
  start(100);
  kill(stream_handle_);
  grant(1, 0);
  EXPECT_TRUE(run_until([&] { return exit_->has_value(); }));
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
}

TEST_F(PromptSourceTest, ExitsAtTheDeadlineIfTheKeeperDoesNotReply) {
  start(100);
  advance(34s);
  EXPECT_FALSE(exit_->has_value());
  advance(2s);  // past the requested wait of 5 s and the margin of 30 s
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kTimeout);
}

}  // namespace
}  // namespace tidemill::test
