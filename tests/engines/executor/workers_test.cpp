// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/workers.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engines/ops/cpu/factory.hpp"
#include "tests/support/one_processor.hpp"

namespace tidemill::engines {
namespace {

std::ptrdiff_t process_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(tasks, std::filesystem::directory_iterator());
}

TEST(Workers, RangesCoverEverythingOnceInWholeGrains) {
  for (const int count : {1, 2, 3, 5}) {
    Workers workers(count);
    EXPECT_EQ(workers.size(), count);
    for (const std::int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 16, 2000}) {
        std::mutex mutex;
        std::set<std::pair<std::int64_t, std::int64_t>> ranges;
        workers.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          const std::lock_guard lock(mutex);
          ranges.emplace(begin, end);
        });
        std::int64_t next = 0;
        for (const auto& [begin, end] : ranges) {
          EXPECT_EQ(begin, next);
          EXPECT_LT(begin, end);
          EXPECT_EQ(begin % grain, 0);
          next = end;
        }
        EXPECT_EQ(next, n);
        EXPECT_LE(std::ssize(ranges), count);
      }
    }
  }
}

TEST(Workers, ALoopOfOneGrainStaysOnTheCaller) {
  Workers workers(3);
  const auto caller = std::this_thread::get_id();
  workers.parallel_for(8, 8, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 8);
  });
}

TEST(Workers, RunsManyLoopsInARowAndAfterASleep) {
  Workers workers(3);
  std::atomic<std::int64_t> sum{0};
  const auto add = [&](std::int64_t begin, std::int64_t end) { sum += end - begin; };
  for (int i = 0; i < 20000; ++i) {
    workers.parallel_for(9, 1, add);
  }
  // Long enough for the helpers to stop spinning and sleep, so that they must be woken.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  workers.parallel_for(9, 1, add);
  EXPECT_EQ(sum.load(), 20001 * 9);
}

TEST(Workers, TheCallerTakesThePartsOfMembersThatDoNotRun) {
  const test::OnOneProcessor one;
  Workers workers(3);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> parts{0};
  std::atomic<int> taken{0};
  constexpr int kLoops = 5000;
  for (int i = 0; i < kLoops; ++i) {
    workers.parallel_for(3, 1, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(end, begin + 1);
      ++parts;
      if (begin > 0 && std::this_thread::get_id() == caller) {
        ++taken;
      }
    });
  }
  EXPECT_EQ(parts.load(), 3 * kLoops);
  EXPECT_GT(taken.load(), 0);
}

TEST(Workers, DifferentThreadsMayCall) {
  Workers workers(2);
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 10; ++i) {
    std::thread([&] {
      workers.parallel_for(10, 1,
                           [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    }).join();
  }
  EXPECT_EQ(sum.load(), 100);
}

// The only threads of a device are its workers: operations start no others.
TEST(Workers, OperationsStartNoThread) {
  const std::ptrdiff_t before = process_threads();
  {
    Workers workers(3);
    EXPECT_EQ(process_threads(), before + 2);
    const std::unique_ptr<host::Ops> ops = make_cpu_host_ops(workers).value();
    constexpr std::int64_t kSize = 256;
    const std::vector<float> ones(kSize * kSize, 1.0F);
    std::vector<float> result(kSize * kSize);
    const auto weight = ops->prepare_weight({ones.data(), DType::kF32, kSize, kSize}, DType::kBF16,
                                            WeightUse::kForwardAndBackward)
                            .value();
    const host::ConstMatrix x{ones.data(), kSize, kSize, kSize};
    const host::Matrix y{result.data(), kSize, kSize, kSize};
    ops->linear(x, *weight, {}, Store::kOverwrite, y);
    ops->linear_backward_input(x, *weight, Store::kAdd, y);
    EXPECT_EQ(result.back(), 2.0F * kSize);
    EXPECT_EQ(process_threads(), before + 2);
  }
  EXPECT_EQ(process_threads(), before);
}

}  // namespace
}  // namespace tidemill::engines
