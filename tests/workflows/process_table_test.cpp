// SPDX-License-Identifier: Apache-2.0
// Tests workflows/processes/process_table.hpp: which numbers of processes are refused.
#include "workflows/processes/process_table.hpp"

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/soft_limit.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::StartsWith;

// Processes of a role of which some are connected.
class FakeGroup final : public ProcessGroup {
public:
  FakeGroup(std::string role, std::uint32_t connected, std::uint32_t broken) {
    for (std::uint32_t i = 0; i < connected + broken; ++i) {
      ProcessReport& report = reports_.emplace_back();
      report.role = role;
      report.starts = 1;
      report.link.state = i < connected ? transport::PeerSession::State::kConnected
                                        : transport::PeerSession::State::kDisconnected;
    }
  }
  void start_again(std::size_t index) { ++reports_.at(index).starts; }
  std::vector<ProcessReport> report() override { return reports_; }
  void scale(std::uint32_t /*processes*/, const actors::SupervisorActor& /*unused*/) override {}

private:
  std::vector<ProcessReport> reports_;
};

rlim_t open_files() {
  // The iterator has a descriptor of its own while it counts, as in the check.
  return static_cast<rlim_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

class ProcessTableTest : public ::testing::Test {
protected:
  ProcessTableTest() {
    table_.add_role("rollout", {2, 8, kFilesPerDevice});
    table_.add_role("reward", {3, 64, kFilesPerProcess});
    table_.set_group("rollout", rollout_);
    table_.set_group("reward", reward_);
  }

  // Asks for processes while `free` descriptors are left.
  Status scale_with(rlim_t free, const std::string& role, std::uint32_t processes) {
    const test::SoftLimit limit(RLIMIT_NOFILE, open_files() + free);
    return table_.scale(role, processes).status();
  }

  ProcessTable table_;
  std::shared_ptr<FakeGroup> rollout_ = std::make_shared<FakeGroup>("rollout", 1, 1);
  std::shared_ptr<FakeGroup> reward_ = std::make_shared<FakeGroup>("reward", 3, 0);
};

TEST_F(ProcessTableTest, RefusesWhatItDoesNotKnowAndWhatMemoryDoesNotAllow) {
  EXPECT_EQ(table_.scale("trainer", 1).status().code(), Errc::kNotFound);
  for (const std::uint32_t wrong : {0U, 9U}) {
    const Status status = table_.scale("rollout", wrong).status();
    EXPECT_EQ(status.code(), Errc::kInvalidArgument);
    EXPECT_THAT(status.message(),
                StartsWith("rollout=" + std::to_string(wrong) + ": must be from 1 to 8"));
  }
}

TEST_F(ProcessTableTest, SaysHowManyAreConnectedAndHowOftenTheyWereStartedAgain) {
  EXPECT_EQ(ProcessTable().summary(), "");
  EXPECT_EQ(table_.summary(), "reward 3 of 3 connected, rollout 1 of 2 connected");
  reward_->start_again(1);
  EXPECT_EQ(table_.summary(), "reward 3 of 3 connected, rollout 1 of 2 connected; 1 restart");
  reward_->start_again(2);
  reward_->start_again(2);
  EXPECT_EQ(table_.summary(), "reward 3 of 3 connected, rollout 1 of 2 connected; 3 restarts");
}

// Two more reward processes need five descriptors each, the rollout process that is not connected
// six, and the run keeps some for itself.
TEST_F(ProcessTableTest, RefusesMoreProcessesThanDescriptorsAllow) {
  constexpr rlim_t kNeeded = 2 * 5 + 6 + 128;
  const Status status = scale_with(kNeeded - 1, "reward", 5);
  EXPECT_EQ(status.code(), Errc::kResourceExhausted);
  EXPECT_THAT(status.message(), StartsWith("reward=5: 3 more processes and the run need 144 open "
                                           "files, and 143 are left (ulimit -n "));
  EXPECT_EQ(table_.processes("reward"), 3U);
  EXPECT_EQ(scale_with(kNeeded, "reward", 5).code(), Errc::kUnavailable) << "it has no supervisor";
  EXPECT_EQ(scale_with(1, "reward", 2).code(), Errc::kUnavailable) << "fewer are allowed";
}

}  // namespace
}  // namespace tidemill::workflows
