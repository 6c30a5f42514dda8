// SPDX-License-Identifier: Apache-2.0
// Tests a gateway on a device with a fake engine: if a client closes its connection, the engine
// generates nothing more for it after the iteration that is running.
#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "actors/device/spawn.hpp"
#include "tests/actors/gateway/gateway_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using engines::FinishReason;
using ::testing::HasSubstr;

// Generates one token of each of at most 4 responses in a step.
class SteppedEngine final : public engines::RolloutEngine {
public:
  Status submit(engines::RolloutRequest request, engines::RolloutSink& sink) override {
    jobs_.push_back({std::move(request), &sink, {}});
    return {};
  }
  void cancel(SampleId id) override {
    ++cancelled;
    end(std::ranges::find(jobs_, id, [](const Job& job) { return job.request.id; }),
        FinishReason::kCancelled);
  }
  Status load(engines::Snapshot /*snapshot*/, engines::WeightArrival /*arrival*/) override {
    return {Errc::kUnimplemented, "no weights"};
  }
  PolicyVersion serving_version() const override { return {}; }
  bool has_work() const override { return !jobs_.empty(); }
  Result<engines::StepReport> step(const engines::StepBudget& /*budget*/) override {
    ++steps;
    std::vector<SampleId> ended;
    for (Job& job : std::span(jobs_).first(std::min<std::size_t>(jobs_.size(), 4))) {
      const std::array<std::int32_t, 1> token{'a'};
      const std::array<float, 1> logprob{-1.0F};
      const std::array<engines::VersionSpan, 1> version{engines::VersionSpan{{}, 1}};
      job.sink->on_tokens({job.request.id, job.tokens.size(), token, logprob, version});
      job.tokens.push_back('a');
      if (std::ssize(job.tokens) == job.request.max_new_tokens) {
        ended.push_back(job.request.id);
      }
    }
    for (const SampleId id : ended) {
      end(std::ranges::find(jobs_, id, [](const Job& job) { return job.request.id; }),
          FinishReason::kLength);
    }
    return engines::StepReport();
  }

  int steps = 0;
  int cancelled = 0;
  int steps_until_cancel = 0;  // when `cancel` was called last

private:
  struct Job {
    engines::RolloutRequest request;
    engines::RolloutSink* sink = nullptr;
    std::vector<std::int32_t> tokens;
  };

  void end(std::vector<Job>::iterator job, FinishReason reason) {
    ASSERT_NE(job, jobs_.end());
    steps_until_cancel = reason == FinishReason::kCancelled ? steps : steps_until_cancel;
    engines::RolloutResult result;
    result.id = job->request.id;
    result.response_ids = job->tokens;
    result.behavior_logprobs.assign(job->tokens.size(), -1.0F);
    result.versions = {{{}, static_cast<std::uint32_t>(job->tokens.size())}};
    result.finish_reason = reason;
    engines::RolloutSink* sink = job->sink;
    jobs_.erase(job);
    sink->on_rollout(std::move(result));
  }

  std::vector<Job> jobs_;
};

class DisconnectTest : public GatewayTest {
protected:
  void complete_deps(actors::GatewayDeps& deps) override {
    actors::DeviceDeps device;
    device.rollout = &engine_;
    device.port = &port();
    real_device_ = keep(actors::spawn_device(system(), std::move(device)));
    deps.device = caf::actor_cast<actors::StreamingActor>(real_device_);
  }
  void TearDown() override {
    real_device_ = nullptr;
    GatewayTest::TearDown();
  }
  ExchangeId stream(const std::string& members = "") {
    return complete(
        R"(, "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50)" +
        members);
  }
  void close(ExchangeId id) {
    steps_before_close_ = engine_.steps;
    caf::anon_send(gateway_, atom::closed_v, id);
    drain();
  }

  SteppedEngine engine_;
  int steps_before_close_ = 0;
  actors::DeviceActor real_device_;
};

TEST_F(DisconnectTest, TheLastRequestEndsWithTheIterationThatRuns) {
  const ExchangeId id = stream();
  ASSERT_TRUE(run_until([&] { return engine_.steps >= 3; }));
  close(id);
  EXPECT_FALSE(run_until([] { return false; }, 20)) << "20 more iterations, if there were work";
  EXPECT_EQ(engine_.cancelled, 1);
  EXPECT_LE(engine_.steps - steps_before_close_, 1);
  EXPECT_FALSE(engine_.has_work());
}

// Every choice of the request is cancelled before the next iteration, and other requests go on.
TEST_F(DisconnectTest, OtherRequestsGoOn) {
  const ExchangeId closed = stream(R"(, "n": 3)");
  const ExchangeId other = stream();
  ASSERT_TRUE(run_until([&] { return engine_.steps >= 3; }));
  close(closed);
  ASSERT_TRUE(run_until([&] { return sent(other).ended; }));
  EXPECT_THAT(sent(other).response.body, HasSubstr(R"("completion_tokens":50)"));
  EXPECT_FALSE(sent(closed).ended);
  EXPECT_EQ(engine_.cancelled, 3);
  EXPECT_LE(engine_.steps_until_cancel - steps_before_close_, 1);
  EXPECT_GE(engine_.steps - steps_before_close_, 45);
}

TEST_F(DisconnectTest, WaitingRequestsAreCancelled) {
  const ExchangeId running = stream(R"(, "n": 4)");
  const ExchangeId waiting = stream(R"(, "n": 4)");
  ASSERT_TRUE(run_until([&] { return engine_.steps >= 3; }));
  close(waiting);
  ASSERT_TRUE(run_until([&] { return sent(running).ended; }));
  EXPECT_THAT(sent(running).response.body, HasSubstr(R"("completion_tokens":200)"));
  EXPECT_EQ(engine_.cancelled, 4);
  EXPECT_LE(engine_.steps_until_cancel - steps_before_close_, 1);
  EXPECT_EQ(sent(waiting).responses, 0);
  EXPECT_FALSE(engine_.has_work());
}

}  // namespace
}  // namespace tidemill::test
