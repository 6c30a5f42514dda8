// SPDX-License-Identifier: Apache-2.0
// Tests how much memory the training jobs of Tinker's API get.
#include "workflows/serve/tinker_memory.hpp"

#include <gtest/gtest.h>

#include "engines/runtime/new_adapter.hpp"
#include "tests/workflows/planned_model.hpp"

namespace tidemill::workflows {
namespace {

using engines::Recompute;

constexpr std::int64_t kLongestTokens = 100;

engines::JobOptions job_with(std::int64_t job_bytes) {
  const engines::ModelFiles model = planned_model();
  engines::JobOptions job;
  job.adapter =
      engines::make_adapter(engines::AdapterConfig(), model, DType::kF32, 1, "test").value();
  set_job_memory(model.config, DType::kF32, {kLongestTokens, job_bytes}, job);
  return job;
}

TEST(TinkerMemory, JobsRecomputeNoMoreThanTheirMemoryDemands) {
  const engines::JobOptions most = job_with(std::int64_t{1} << 32U);
  EXPECT_EQ(most.recompute, Recompute::kNone);
  EXPECT_EQ(most.limits.train_rows, 4096);
  const std::int64_t row = most.activation_bytes / most.limits.train_rows;
  const engines::JobOptions exact = job_with(kLongestTokens * row);
  EXPECT_EQ(exact.recompute, Recompute::kNone);
  EXPECT_EQ(exact.activation_bytes, kLongestTokens * row);
  const engines::JobOptions less = job_with(kLongestTokens * row - 1);
  EXPECT_EQ(less.recompute, Recompute::kCheap);
  EXPECT_LT(less.activation_bytes, exact.activation_bytes);
}

TEST(TinkerMemory, TheLongestSequenceFitsEvenIfMemoryIsShort) {
  const engines::JobOptions least = job_with(1);
  EXPECT_EQ(least.recompute, Recompute::kLayer);
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20U}) {
    const engines::JobOptions job = job_with(bytes);
    EXPECT_GE(job.limits.train_rows, kLongestTokens);
    EXPECT_EQ(job.limits.sequence_rows, kLongestTokens);
    EXPECT_GE(job.activation_bytes, job.limits.train_rows);
  }
}

TEST(TinkerMemory, AModelTakesItsActivationsAndSixCopiesOfItsParameters) {
  const engines::ModelFiles model = planned_model();
  engines::AdapterConfig config;
  config.targets.names = {"q_proj"};
  config.rank = 4;
  const std::int64_t rows = model.config.num_heads * model.config.head_dim;
  const std::int64_t parameters =
      model.config.num_layers * config.rank * (model.config.hidden_size + rows);
  EXPECT_EQ(tinker_model_bytes(config, model.config, 1000),
            static_cast<std::size_t>(1000 + 6 * 4 * parameters));
  EXPECT_EQ(tinker_snapshot_bytes(config, model.config), static_cast<std::size_t>(4 * parameters));
}

}  // namespace
}  // namespace tidemill::workflows
