// SPDX-License-Identifier: Apache-2.0
// Tests how a job's view of a device requests responses.
#include "actors/device/job_views.hpp"

#include <utility>

#include <gtest/gtest.h>

#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {
namespace {

class JobViewsTest : public ActorTest {
protected:
  void SetUp() override { device_ = keep(spawn_fake_device(system(), fake_)); }
  void TearDown() override {
    fake_->generations.clear();
    device_ = nullptr;
    ActorTest::TearDown();
  }

  std::shared_ptr<FakeDevice> fake_ = std::make_shared<FakeDevice>();
  actors::DeviceActor device_;
};

TEST_F(JobViewsTest, RolloutsOfAJobAreBelowEveryClient) {
  actors::JobView view;
  view.device = device_;
  view.rollout_name = std::string(actors::kPrivateAdapterPrefix) + "7";
  view.first_sample = 1000;
  const actors::ServingActor serving = keep(actors::spawn_job_serving(system(), view));
  engines::RolloutRequest request;
  request.id = {5};
  request.prompt_ids = {1, 2};
  request.priority = engines::Priority::kHigh;
  const auto reply = ask<engines::RolloutResult>(serving, atom::generate_v, request);
  drain();
  ASSERT_EQ(fake_->generations.size(), 1U);
  const engines::RolloutRequest& asked = fake_->generations.at(0).request;
  EXPECT_EQ(asked.priority, engines::Priority::kBackground);
  EXPECT_EQ(asked.tenant, view.rollout_name) << "jobs share what clients leave";
  EXPECT_EQ(asked.adapter, view.rollout_name);
  EXPECT_EQ(asked.id, SampleId{1005});
  EXPECT_EQ(asked.key(), 5U);
  engines::RolloutResult result;
  result.id = asked.id;
  fake_->generations.at(0).reply(std::move(result));
  drain();
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().id, SampleId{5});
}

}  // namespace
}  // namespace tidemill::test
