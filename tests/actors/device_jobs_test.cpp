// SPDX-License-Identifier: Apache-2.0
// Tests the jobs of a device on a small model: several jobs and generation at the same time.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/device/spawn.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/support/actor_test.hpp"

namespace tidemill::test {
namespace {

using actors::AdapterAction;
using actors::AdapterList;
using actors::AdapterRequest;
using actors::JobOpening;
using actors::OptimizerState;
using actors::PassOutcome;
using actors::PassRequest;
using actors::TrainingState;
using engines::OptimStep;
using engines::RolloutResult;
using engines::Snapshot;
using engines::TrainSequence;
using engines::UpdateReport;
using ::testing::HasSubstr;

constexpr std::int64_t kCacheTokens = 512;

engines::JobOptions job_options(const engines::ModelFiles& model, const std::string& adapter) {
  engines::JobOptions options;
  options.adapter = engines::sample_adapter(model, adapter, 7);
  options.optimizer.adamw = {};
  options.optimizer.schedule.learning_rate = 0.01;
  options.reserved_tokens = 128;
  return options;
}

std::vector<TrainSequence> batch_of(const engines::ModelConfig& model, std::uint64_t first_id,
                                    std::uint64_t count = 3) {
  std::vector<TrainSequence> batch;
  for (std::uint64_t id = first_id; id < first_id + count; ++id) {
    const engines::RolloutRequest request =
        engines::sampling_request(id, model, 5 + static_cast<std::int64_t>(id % 4), 8);
    RolloutResult result;
    for (std::int32_t t = 0; t < 8; ++t) {
      result.response_ids.push_back(static_cast<std::int32_t>((id * 7 + 3) % 40) + t);
    }
    result.behavior_logprobs.assign(8, -1.0F);
    batch.push_back(to_sequence(request, result));
  }
  return batch;
}

actors::LossFactory weighted_loss() {
  return [](auto) -> Result<std::unique_ptr<engines::TokenLoss>> {
    return std::unique_ptr<engines::TokenLoss>(std::make_unique<engines::WeightedLoss>());
  };
}

class DeviceJobsTest : public ActorTest {
protected:
  DeviceJobsTest() : runtime_(open()) {
    actors::DeviceDeps deps;
    deps.runtime = runtime_;
    deps.rollout = &runtime_->rollout();
    deps.adapters = &runtime_->adapters();
    deps.port = &port();
    deps.clock = &clock_;
    deps.executor.goal.emplace();
    deps.open_job = [this](const engines::JobOptions& options) {
      return runtime_->open_job(options);
    };
    deps.open_adapter = [this](const AdapterRequest& request) -> Result<engines::AdapterFiles> {
      TIDEMILL_ASSIGN_OR_RETURN(engines::AdapterConfig config,
                                engines::parse_adapter_config(request.config, request.name));
      return engines::assemble_adapter(std::move(config), request.tensors, model_.config,
                                       request.name);
    };
    device_ = keep(actors::spawn_device(system(), std::move(deps)));
  }

  std::shared_ptr<engines::ModelRuntime> open() const {
    engines::RuntimeOptions options = engines::small_options(model_.config, engines::Backend::kCpu,
                                                             kCacheTokens, engines::Training::kNo);
    options.trains_adapters = true;
    options.adapter_bytes = std::int64_t{16} << 20U;
    return engines::open_runtime(model_, options).value();
  }

  template <class Value, class... Ts>
  Reply<Value> send(Ts... message) {
    auto reply = ask<Value>(device_, message...);
    drain();
    return reply;
  }
  template <class Value>
  bool until(const Reply<Value>& reply) {
    return run_until([&] { return reply.arrived(); });
  }
  // Returns how many jobs the device reports.
  std::uint64_t open_jobs() {
    const auto usage = send<actors::DeviceUsage>(atom::status_v);
    EXPECT_TRUE(until(usage));
    return usage.value().jobs;
  }
  Reply<JobId> open_job(JobId id, const std::string& adapter, double weight = 1.0) {
    JobOpening opening{id, job_options(model_, adapter), weighted_loss(), weight};
    auto reply = send<JobId>(atom::open_v, std::make_shared<const JobOpening>(std::move(opening)));
    EXPECT_TRUE(until(reply));
    return reply;
  }
  Reply<PassOutcome> pass(JobId id, std::vector<TrainSequence> batch, bool with_loss = true) {
    PassRequest request{{std::move(batch)}, with_loss ? weighted_loss() : actors::LossFactory()};
    return send<PassOutcome>(atom::pass_v, id,
                             std::make_shared<const PassRequest>(std::move(request)));
  }
  Reply<UpdateReport> step(JobId id, const OptimStep& how = {}) {
    return send<UpdateReport>(atom::step_v, id, std::make_shared<const OptimStep>(how));
  }
  Reply<RolloutResult> generate(std::uint64_t id, const std::string& adapter = "") {
    engines::RolloutRequest request = engines::sampling_request(id, model_.config, 6, 12);
    request.adapter = adapter;
    return send<RolloutResult>(atom::generate_v, request);
  }

  SystemClock clock_;
  engines::ModelFiles model_ = engines::small_model(3);
  std::shared_ptr<engines::ModelRuntime> runtime_;
  actors::DeviceActor device_;
};

constexpr JobId kOne{1};
constexpr JobId kTwo{2};

// Two steps of a job, whose results a test compares.
struct Trained {
  std::vector<std::vector<float>> logprobs;
  std::vector<engines::LossSums> sums;
  std::vector<double> norms;
  Snapshot snapshot;
  TensorMap moments;
};

Trained train_alone(engines::TrainingJob& job, const engines::ModelConfig& model) {
  Trained trained;
  for (const std::uint64_t first : {10U, 20U}) {
    engines::WeightedLoss loss;
    const auto batch = batch_of(model, first);
    EXPECT_TRUE(engines::begin(job, batch, &loss).ok());
    EXPECT_TRUE(engines::run_to_end(job).ok());
    for (const TrainSequence& sequence : batch) {
      trained.logprobs.push_back(job.logprobs(sequence.id).value());
    }
    const UpdateReport report = engines::update(job).value();
    trained.sums.push_back(report.sums);
    trained.norms.push_back(report.gradient_norm);
  }
  trained.snapshot = engines::publish(job, {4, 0, 2}).value();
  trained.moments = engines::optimizer_state(job).value();
  return trained;
}

TEST_F(DeviceJobsTest, JobsBesideEachOtherAndGenerationHaveTheBitsOfJobsAlone) {
  const std::shared_ptr<engines::ModelRuntime> alone = open();
  std::map<JobId, Trained> expected;
  expected[kOne] =
      train_alone(*alone->open_job(job_options(model_, "lora")).value(), model_.config);
  expected[kTwo] = train_alone(*alone->open_job(job_options(model_, "ia3")).value(), model_.config);
  engines::ResultKeeper results;
  const auto request = engines::sampling_request(900, model_.config, 6, 12);
  engines::run_requests(alone->rollout(), {request}, results);

  ASSERT_TRUE(open_job(kOne, "lora").ok());
  ASSERT_TRUE(open_job(kTwo, "ia3", 3.0).ok());
  std::map<JobId, Trained> actual;
  const auto generated = generate(900);
  for (const std::uint64_t first : {10U, 20U}) {
    std::map<JobId, Reply<PassOutcome>> passes;
    for (const JobId id : {kOne, kTwo}) {
      passes[id] = pass(id, batch_of(model_.config, first));
    }
    for (const JobId id : {kOne, kTwo}) {
      ASSERT_TRUE(until(passes[id]));
      ASSERT_TRUE(passes[id].ok()) << passes[id].status().to_string();
      const auto& logprobs = passes[id].value().logprobs;
      actual[id].logprobs.insert(actual[id].logprobs.end(), logprobs.begin(), logprobs.end());
      actual[id].sums.push_back(passes[id].value().sums);
      const auto updated = step(id);
      ASSERT_TRUE(until(updated));
      actual[id].norms.push_back(updated.value().gradient_norm);
    }
  }
  for (const JobId id : {kOne, kTwo}) {
    const auto saved = send<Snapshot>(atom::save_v, id, PolicyVersion{4, 0, 2});
    ASSERT_TRUE(until(saved));
    const auto captured = send<OptimizerState>(atom::capture_v, id);
    ASSERT_TRUE(until(captured));
    EXPECT_EQ(actual[id].logprobs, expected[id].logprobs);
    EXPECT_EQ(actual[id].sums, expected[id].sums);
    EXPECT_EQ(actual[id].norms, expected[id].norms);
    EXPECT_TRUE(engines::same_tensors(saved.value().adapter, expected[id].snapshot.adapter));
    EXPECT_EQ(saved.value().adapter_digest, expected[id].snapshot.adapter_digest);
    EXPECT_TRUE(engines::same_tensors(captured.value().tensors, expected[id].moments));
  }
  ASSERT_TRUE(until(generated));
  engines::expect_same_result(generated.value(), results.at(900));
}

// Sampling under a published adapter and training give the same log-probabilities, bit for bit.
TEST_F(DeviceJobsTest, WhatIsPublishedSamplesWithTheLogprobsOfItsJob) {
  ASSERT_TRUE(open_job(kOne, "lora").ok());
  ASSERT_TRUE(until(pass(kOne, batch_of(model_.config, 10))));
  ASSERT_TRUE(until(step(kOne)));
  const auto saved = send<Snapshot>(atom::save_v, kOne, PolicyVersion{4, 0, 1});
  ASSERT_TRUE(until(saved));
  const AdapterRequest load{
      AdapterAction::kLoad,
      "tuned",
      "",
      {4, 0, 1},
      engines::adapter_config_text(job_options(model_, "lora").adapter.config),
      saved.value().adapter};
  const auto loaded = send<AdapterList>(atom::adapters_v, load);
  ASSERT_TRUE(until(loaded));
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const auto sampled = generate(50, "tuned");
  ASSERT_TRUE(until(sampled));
  const RolloutResult& result = sampled.value();
  EXPECT_EQ(result.versions.front().version, (PolicyVersion{4, 0, 1}));
  const auto request = engines::sampling_request(50, model_.config, 6, 12);
  PassRequest scoring{{{to_sequence(request, result)}, request.sampling.temperature}, {}};
  const auto scored = send<PassOutcome>(atom::pass_v, kOne,
                                        std::make_shared<const PassRequest>(std::move(scoring)));
  ASSERT_TRUE(until(scored));
  const auto& logprobs = scored.value().logprobs.at(0);
  EXPECT_EQ(
      std::vector<float>(logprobs.end() - std::ssize(result.behavior_logprobs), logprobs.end()),
      result.behavior_logprobs);
}

TEST_F(DeviceJobsTest, AJobGoesOnInAnotherFromWhatWasSaved) {
  ASSERT_TRUE(open_job(kOne, "lora").ok());
  ASSERT_TRUE(until(pass(kOne, batch_of(model_.config, 10))));
  ASSERT_TRUE(until(step(kOne)));
  const auto saved = send<Snapshot>(atom::save_v, kOne, PolicyVersion{4, 0, 1});
  ASSERT_TRUE(until(saved));
  const auto captured = send<OptimizerState>(atom::capture_v, kOne);
  ASSERT_TRUE(until(captured));
  ASSERT_TRUE(open_job(kTwo, "lora").ok());
  const auto restored =
      send<PolicyVersion>(atom::restore_v, kTwo, TrainingState{saved.value(), captured.value()});
  ASSERT_TRUE(until(restored));
  std::map<JobId, Reply<Snapshot>> ends;
  for (const JobId id : {kOne, kTwo}) {
    ASSERT_TRUE(until(pass(id, batch_of(model_.config, 20))));
    ASSERT_TRUE(until(step(id)));
    ends[id] = send<Snapshot>(atom::save_v, id, PolicyVersion{4, 0, 2});
    ASSERT_TRUE(until(ends[id]));
  }
  EXPECT_EQ(ends[kOne].value().adapter_digest, ends[kTwo].value().adapter_digest);
  EXPECT_NE(ends[kOne].value().adapter_digest, saved.value().adapter_digest);
}

TEST_F(DeviceJobsTest, RequestsThatCannotBeServedAreRefused) {
  const auto unknown = pass(kOne, batch_of(model_.config, 10));
  ASSERT_TRUE(until(unknown));
  EXPECT_EQ(unknown.status().code(), Errc::kNotFound);
  EXPECT_THAT(unknown.status().message(), HasSubstr("job 1 is not open"));
  EXPECT_EQ(open_job(JobId{}, "lora").status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(open_job(kOne, "lora", 0.0).status().code(), Errc::kInvalidArgument);
  ASSERT_TRUE(open_job(kOne, "lora").ok());
  EXPECT_EQ(open_job(kOne, "lora").status().code(), Errc::kInvalidArgument);
  const auto none = step(kOne);
  ASSERT_TRUE(until(none));
  EXPECT_EQ(none.status().code(), Errc::kInvalidArgument) << "no gradients";

  const auto pending = pass(kOne, batch_of(model_.config, 10));
  const auto second = pass(kOne, batch_of(model_.config, 20));
  ASSERT_TRUE(until(second));
  EXPECT_EQ(second.status().code(), Errc::kUnavailable);
  ASSERT_TRUE(until(pending));
  EXPECT_TRUE(pending.ok());
}

TEST_F(DeviceJobsTest, APassThatIsRefusedKeepsTheGradientsOfEarlierOnes) {
  ASSERT_TRUE(open_job(kOne, "lora").ok());
  ASSERT_TRUE(open_job(kTwo, "lora").ok());
  ASSERT_TRUE(until(pass(kOne, batch_of(model_.config, 10))));
  ASSERT_TRUE(until(pass(kTwo, batch_of(model_.config, 10))));
  auto bad = batch_of(model_.config, 20);
  bad[1].ids[2] = -1;
  const auto refused = pass(kOne, bad);
  ASSERT_TRUE(until(refused));
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  const auto one = step(kOne);
  const auto two = step(kTwo);
  ASSERT_TRUE(until(one));
  ASSERT_TRUE(until(two));
  EXPECT_GT(one.value().gradient_norm, 0.0);
  EXPECT_EQ(one.value().gradient_norm, two.value().gradient_norm);
}

TEST_F(DeviceJobsTest, ClosingAJobFreesItsMemoryAndFailsItsRequest) {
  ASSERT_TRUE(open_job(kTwo, "lora").ok());
  const engines::DeviceUse before = runtime_->device_use();
  ASSERT_TRUE(open_job(kOne, "lora").ok());
  EXPECT_EQ(open_jobs(), 2U) << "no job has work";
  EXPECT_GT(runtime_->device_use().bytes, before.bytes);
  const auto pending = pass(kOne, batch_of(model_.config, 10, 1000));  // more than one iteration
  caf::anon_send(device_, atom::close_v, kOne);
  ASSERT_TRUE(until(pending));
  EXPECT_EQ(pending.status().code(), Errc::kUnavailable);
  const auto closed = step(kOne);
  ASSERT_TRUE(until(closed));
  EXPECT_EQ(closed.status().code(), Errc::kNotFound);
  EXPECT_EQ(runtime_->device_use().bytes, before.bytes);
  EXPECT_EQ(open_jobs(), 1U);
  ASSERT_TRUE(until(pass(kTwo, batch_of(model_.config, 10)))) << "the other job goes on";
}

}  // namespace
}  // namespace tidemill::test
