// SPDX-License-Identifier: Apache-2.0
// The contract of `ServingActor`, for a device of the same process and of another one.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/device_fixture.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {
namespace {

using engines::FinishReason;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// The parameter says whether the device is in another process.
class ServedDeviceTest : public DeviceTest, public ::testing::WithParamInterface<bool> {
protected:
  void SetUp() override {
    DeviceTest::SetUp();
    remote_ = GetParam();
  }
};

INSTANTIATE_TEST_SUITE_P(Places, ServedDeviceTest, ::testing::Bool(), place_name);

TEST_P(ServedDeviceTest, GenerateRepliesWhenTheResponseHasEnded) {
  start();
  const auto shorter = generate(request(0));
  const auto longer = generate(request(3));
  EXPECT_FALSE(shorter.arrived());
  ASSERT_TRUE(until(shorter));
  EXPECT_FALSE(longer.arrived());
  ASSERT_TRUE(until(longer));
  EXPECT_EQ(longer.value().response_ids.size(), 4U);
  EXPECT_EQ(longer.value().versions.at(0).version, initial_.version);
  EXPECT_EQ(longer.count(), 1);
  EXPECT_GT(now(), TimePoint{});  // iterations take virtual time
}

TEST_P(ServedDeviceTest, GenerateFailsWithTheMessageOfTheEngine) {
  start();
  auto empty = request(0);
  empty.prompt_ids.clear();
  const auto reply = generate(empty);
  ASSERT_TRUE(until(reply));
  EXPECT_EQ(reply.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(reply.status().message(), HasSubstr("empty prompt"));
}

TEST_P(ServedDeviceTest, CancelEndsARequestAndIgnoresUnknownOnes) {
  start();
  caf::anon_send(serving_, atom::cancel_v, SampleId{77});
  generate(request(0));  // keeps the engine at the port
  const auto reply = generate(request(3));
  caf::anon_send(serving_, atom::cancel_v, SampleId{3});
  ASSERT_TRUE(until(reply));
  EXPECT_EQ(reply.value().finish_reason, FinishReason::kCancelled);
  EXPECT_FALSE(exit_->has_value());
}

TEST_P(ServedDeviceTest, ASecondRequestForASampleReplacesTheFirst) {
  start();
  generate(request(0));  // keeps the engine at the port
  const auto first = generate(request(3));
  const auto second = generate(request(3));
  ASSERT_TRUE(until(second));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.value().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(second.value().response_ids.size(), 4U);
}

TEST_P(ServedDeviceTest, AnEngineThatFailsEndsTheDevice) {
  start();
  rollout_->failure = {Errc::kInternal, "logits are not finite sample_id=3"};
  generate(request(3));
  advance(1s);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_THAT((*exit_)->message(), HasSubstr("logits are not finite sample_id=3"));
}

TEST_P(ServedDeviceTest, LoadedWeightsAreServedOnceTheResponsesInFlightHaveEnded) {
  start();
  const auto trained = train(job({{0}}));
  ASSERT_TRUE(until(trained));
  const auto before = generate(request(3));
  const auto loaded = load(trained.value().snapshot);
  const auto after = generate(request(2, /*min_step=*/1));
  ASSERT_TRUE(until(loaded));
  EXPECT_EQ(loaded.value(), (PolicyVersion{0, 0, 1}));
  ASSERT_TRUE(until(after));
  EXPECT_EQ(before.value().versions.at(0).version.step, 0U);
  EXPECT_EQ(after.value().versions.at(0).version.step, 1U);
}

TEST_P(ServedDeviceTest, LoadRefusesWeightsThatDoNotMatchTheirDigest) {
  start();
  engines::Snapshot wrong = initial_;
  wrong.version.step = 1;
  wrong.base_digest = "0123";
  const auto reply = load(wrong);
  ASSERT_TRUE(until(reply));
  EXPECT_EQ(reply.status().code(), Errc::kCorruptData);
  EXPECT_FALSE(exit_->has_value());
}

TEST_P(ServedDeviceTest, LoadRefusesOlderWeights) {
  start();
  const auto trained = train(job({{0}}));
  ASSERT_TRUE(until(trained));
  ASSERT_TRUE(until(load(trained.value().snapshot)));
  advance(1s);
  const auto older = load(initial_);
  ASSERT_TRUE(until(older));
  EXPECT_EQ(older.status().code(), Errc::kStaleVersion);
}

TEST_P(ServedDeviceTest, WeightsThatAreRefusedEndNoRequest) {
  start();
  const auto before = generate(request(3));
  engines::Snapshot wrong = initial_;
  wrong.version.incarnation = 1;
  wrong.base_digest = "0123";
  ASSERT_TRUE(until(load(wrong)));
  ASSERT_TRUE(until(before));
  EXPECT_EQ(before.value().finish_reason, FinishReason::kStop);
}

TEST_P(ServedDeviceTest, AdaptersAreLoadedListedAndUnloadedAtThePort) {
  using actors::AdapterAction;
  start();
  EXPECT_TRUE(adapters(AdapterAction::kList).value().adapters.empty());
  const auto loaded = adapters(AdapterAction::kLoad, "tutor", "adapters/tutor");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  ASSERT_EQ(loaded.value().adapters.size(), 1U);
  EXPECT_EQ(loaded.value().adapters[0].name, "tutor");
  EXPECT_EQ(loaded.value().adapters[0].version, (PolicyVersion{1, 2, 3}));
  const auto missing = adapters(AdapterAction::kLoad, "other", "nowhere");
  EXPECT_EQ(missing.status().code(), Errc::kNotFound);
  EXPECT_EQ(missing.status().message(), "nowhere: no such directory");
  EXPECT_EQ(adapters(AdapterAction::kLoad, "", "adapters/tutor").status().code(),
            Errc::kInvalidArgument);
  EXPECT_EQ(adapters(AdapterAction::kUnload, "other").status().code(), Errc::kNotFound);
  EXPECT_EQ(adapters(AdapterAction::kList).value().adapters.size(), 1U);
  EXPECT_TRUE(adapters(AdapterAction::kUnload, "tutor").value().adapters.empty());
  EXPECT_EQ(calls_.elsewhere, std::vector<std::string>{});
  EXPECT_FALSE(exit_->has_value());
}

TEST_P(ServedDeviceTest, ADeviceWithoutNamedAdaptersRefusesThem) {
  start(/*trains=*/false);
  EXPECT_EQ(adapters(actors::AdapterAction::kList).status().code(), Errc::kUnimplemented);
}

}  // namespace
}  // namespace tidemill::test
