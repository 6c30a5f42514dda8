// SPDX-License-Identifier: Apache-2.0
// Tests which memory plan is chosen if memory is short.
#include "workflows/memory_plan.hpp"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/one_processor.hpp"
#include "tests/workflows/planned_model.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/process_memory.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

MemoryPlan plan_of(engines::Recompute recompute, std::int64_t activations,
                   std::int64_t generated = 0) {
  MemoryPlan plan;
  plan.budgets.recompute = recompute;
  plan.program_bytes = 10 * kMiB;
  plan.engine.activation_bytes = activations;
  plan.engine.generated_bytes = generated;
  return plan;
}

DeviceOptions with_memory(std::int64_t bytes) {
  DeviceOptions device;
  device.memory_bytes = bytes;
  return device;
}

TEST(MemoryPlan, WeightsInMemoryAreNotCountedAsProgramToo) {
  const engines::ModelFiles model = planned_model();
  const MemoryPlan plan = make_memory_plan(model, {}, {});
  const std::int64_t weights = 4 * engines::num_parameters(model.config);
  EXPECT_EQ(plan.engine.preloaded_bytes, weights);
  ASSERT_TRUE(program_bytes().has_value());
  // The rest of the program hardly changes between the two readings.
  EXPECT_NEAR(static_cast<double>(plan.program_bytes),
              static_cast<double>(*program_bytes() - weights), static_cast<double>(weights) / 2);
}

TEST(MemoryPlan, RowsAreKeptForTrainingIfMemoryAllows) {
  const MemoryPlan with = plan_of(engines::Recompute::kNone, 6 * kMiB, 4 * kMiB);
  const MemoryPlan without = plan_of(engines::Recompute::kNone, 6 * kMiB);
  const auto rows_kept = [&](std::int64_t bytes) {
    return first_allowed({with, without}, with_memory(bytes)).engine.generated_bytes;
  };
  EXPECT_EQ(rows_kept(20 * kMiB), 4 * kMiB) << "exactly the allowed memory";
  EXPECT_EQ(rows_kept(20 * kMiB - 1), 0);
  EXPECT_EQ(rows_kept(1), 0) << "the last plan, since none fits";
}

TEST(MemoryPlan, AutoChoosesTheFirstPolicyThatFits) {
  const auto taken = [](RecomputeChoice choice, std::int64_t bytes) {
    return choose_plan(choice, with_memory(bytes),
                       [](engines::Recompute recompute) {
                         switch (recompute) {
                           case engines::Recompute::kNone: return plan_of(recompute, 6 * kMiB);
                           case engines::Recompute::kCheap: return plan_of(recompute, 4 * kMiB);
                           case engines::Recompute::kLayer: break;
                         }
                         return plan_of(engines::Recompute::kLayer, 2 * kMiB);
                       })
        .budgets.recompute;
  };
  EXPECT_EQ(taken(RecomputeChoice::kAuto, 16 * kMiB), engines::Recompute::kNone);
  EXPECT_EQ(taken(RecomputeChoice::kAuto, 16 * kMiB - 1), engines::Recompute::kCheap);
  EXPECT_EQ(taken(RecomputeChoice::kAuto, 14 * kMiB - 1), engines::Recompute::kLayer);
  EXPECT_EQ(taken(RecomputeChoice::kAuto, 1), engines::Recompute::kLayer);
  EXPECT_EQ(taken(RecomputeChoice::kNone, 1), engines::Recompute::kNone) << "chosen by the user";
}

TEST(MemoryPlan, MicroBatchesShrinkBeforeTheRunIsRefused) {
  const auto plan_for = [](engines::Recompute recompute, std::int64_t tokens) {
    return plan_of(recompute, tokens * kMiB / (recompute == engines::Recompute::kNone ? 1 : 2));
  };
  const auto chosen = [&](std::int64_t mebibytes) {
    return choose_micro_batch(RecomputeChoice::kAuto, with_memory(mebibytes * kMiB), 8, 4,
                              plan_for);
  };
  EXPECT_EQ(chosen(18).engine.activation_bytes, 8 * kMiB);
  EXPECT_EQ(chosen(14).engine.activation_bytes, 4 * kMiB) << "computed again";
  EXPECT_EQ(chosen(14).budgets.recompute, engines::Recompute::kCheap);
  EXPECT_EQ(chosen(12).engine.activation_bytes, 2 * kMiB) << "a micro-batch of the longest row";
  EXPECT_EQ(chosen(11).engine.activation_bytes, 2 * kMiB) << "the last, although it does not fit";
}

TEST(MemoryPlan, ARowThatDoesNotFitIsNamedWithWhatDoes) {
  const auto plan_for = [](std::int64_t tokens) {
    return plan_of(engines::Recompute::kLayer, tokens * kMiB);
  };
  const LongestRow row{50, "rows.jsonl:7", "the sequence"};
  EXPECT_TRUE(check_longest_row(row, with_memory(60 * kMiB), plan_for).ok());
  const Status refused = check_longest_row(row, with_memory(59 * kMiB), plan_for);
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("rows.jsonl:7: the sequence has 50 tokens, and memory is enough for 49 "));
  EXPECT_THAT(refused.message(), HasSubstr("device.memory_bytes: 59.0 MiB are allowed"));
  EXPECT_THAT(check_longest_row(row, with_memory(11 * kMiB), plan_for).message(),
              HasSubstr("memory is enough for 1 "));
  EXPECT_THAT(check_longest_row(row, with_memory(10 * kMiB), plan_for).message(),
              ::testing::StartsWith("device.memory_bytes: "))
      << "no row would fit";
}

// The stacks of a run's threads count toward a limit on address space. A runtime starts one thread
// for each core that the process may use, which may be fewer than the machine has.
TEST(MemoryPlan, CountsTheThreadsThatTheRuntimeStarts) {
  const auto with_threads = [](int threads) {
    DeviceOptions device;
    device.threads = threads;
    return later_threads(device);
  };
  EXPECT_EQ(with_threads(7), with_threads(1) + 6);
  int by_default = 0;
  std::thread([&] {
    const test::OnOneProcessor one;  // this thread alone
    by_default = with_threads(0);
  }).join();
  EXPECT_EQ(by_default, with_threads(1));
}

TEST(MemoryPlan, WarnsOfMoreMemoryThanTheProcessMayUse) {
  EXPECT_EQ(memory_warning(with_memory(60 * kMiB), {60 * kMiB, "ulimit -v"}), "");
  EXPECT_EQ(memory_warning(with_memory(60 * kMiB + kMiB / 2), {60 * kMiB, "ulimit -v"}),
            "60.5 MiB are more than ulimit -v allows, 60.0 MiB; the system may end the run");
  EXPECT_EQ(memory_warning(with_memory(64 * kMiB), {60 * kMiB, ""}),
            "64.0 MiB are more than the machine's memory, 60.0 MiB; the system may end the run");
  EXPECT_EQ(memory_warning(with_memory(0), {60 * kMiB, ""}), "") << "nothing is asked for";
}

TEST(MemoryPlan, WindowsFollowFromTheDataAlone) {
  EXPECT_EQ(window_for(kWindowTokens), 0);
  EXPECT_EQ(window_for(kWindowTokens + 1), kWindowTokens);
}

// Layers of 1024 x (2048 + 2 * 1024 + 2048 + 3 * 3072) weights; see qwen3-0.6b.
TEST(MemoryPlan, WindowsBesideGenerationAreSmallerForLargerLayers) {
  engines::ModelConfig model;
  model.hidden_size = 1024;
  model.intermediate_size = 3072;
  model.num_heads = 16;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  EXPECT_EQ(window_beside_generation(model), 192);
  model.hidden_size = 8192;
  EXPECT_EQ(window_beside_generation(model), 64);
  model.hidden_size = 64;
  EXPECT_EQ(window_beside_generation(model), kWindowTokens);
}

TEST(MemoryPlan, PoliciesAreNamed) {
  using engines::Recompute;
  EXPECT_EQ(policy_text({Recompute::kNone, 0, 1, 1}), "");
  EXPECT_EQ(policy_text({Recompute::kLayer, 0, 1, 1}), "recompute layer");
  EXPECT_EQ(policy_text({Recompute::kNone, 1, 1, 1}), "windows of 1 tokens");
  EXPECT_EQ(policy_text({Recompute::kCheap, 2048, 1, 1}),
            "recompute cheap, windows of 2048 tokens");
}

TEST(MemoryPlan, TheTextNamesAllParts) {
  MemoryPlan plan;
  plan.program_bytes = 1 * kMiB;
  plan.engine.weights_bytes = 2 * kMiB;
  plan.engine.kv_bytes = 3 * kMiB;
  plan.engine.activation_bytes = 4 * kMiB;
  plan.engine.gradient_bytes = 5 * kMiB;
  plan.engine.optimizer_bytes = 6 * kMiB;
  plan.engine.capture_bytes = 7 * kMiB;
  const std::string always =
      "program 1.0, weights 2.0, cached keys and values 3.0, activations 4.0 (recompute none), "
      "gradients 5.0, optimizer 6.0, commits 7.0";
  EXPECT_EQ(to_text(plan), "28.0 MiB: " + always);
  plan.engine.generated_bytes = 8 * kMiB;
  plan.stream_bytes = 9 * kMiB;
  plan.best_bytes = 10 * kMiB;
  plan.note = "NOTE";
  EXPECT_EQ(to_text(plan), "55.0 MiB: " + always +
                               ", rows generated for training 8.0, stream 9.0, best weights 10.0; "
                               "NOTE");
}

TEST(MemoryPlan, APlanThatDoesNotFitIsRefusedWithItsParts) {
  const MemoryPlan plan = plan_of(engines::Recompute::kCheap, 4 * kMiB, 2 * kMiB);
  EXPECT_TRUE(check_memory(plan, with_memory(16 * kMiB)).ok());
  const Status refused = check_memory(plan, with_memory(15 * kMiB));
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("device.memory_bytes: 15.0 MiB are allowed, and the run may need 16.0 MiB, "
                        "1.0 more: program 10.0, "));
  EXPECT_THAT(refused.message(), HasSubstr("activations 4.0 (recompute cheap)"));
  EXPECT_THAT(refused.message(), HasSubstr("rows generated for training 2.0"));
}

}  // namespace
}  // namespace tidemill::workflows
