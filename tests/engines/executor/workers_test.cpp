// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/workers.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <dnnl.hpp>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

std::ptrdiff_t process_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(tasks, std::filesystem::directory_iterator());
}

// A product large enough that oneDNN would want a team for it.
void run_matmul() {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  constexpr dnnl::memory::dim kSize = 256;
  const dnnl::memory::desc desc({kSize, kSize}, dnnl::memory::data_type::f32,
                                dnnl::memory::format_tag::ab);
  std::vector<float> a(kSize * kSize, 1.0F);
  std::vector<float> b(kSize * kSize, 2.0F);
  std::vector<float> c(kSize * kSize, 0.0F);
  const dnnl::matmul product({{desc, desc, desc}, engine});
  product.execute(stream, {{DNNL_ARG_SRC, dnnl::memory(desc, engine, a.data())},
                           {DNNL_ARG_WEIGHTS, dnnl::memory(desc, engine, b.data())},
                           {DNNL_ARG_DST, dnnl::memory(desc, engine, c.data())}});
  stream.wait();
  EXPECT_EQ(c.back(), 2.0F * kSize);
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

TEST(Workers, ALoopShorterThanAGrainStaysOnTheCaller) {
  Workers workers(3);
  const auto caller = std::this_thread::get_id();
  workers.parallel_for(8, 8, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 8);
  });
}

TEST(Workers, ManyLoopsInARowAndAfterSleep) {
  Workers workers(3);
  std::atomic<std::int64_t> sum{0};
  const auto add = [&](std::int64_t begin, std::int64_t end) { sum += end - begin; };
  for (int i = 0; i < 20000; ++i) {
    workers.parallel_for(9, 1, add);
  }
  // Long past the spinning, so that the helpers sleep and must be woken.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  workers.parallel_for(9, 1, add);
  EXPECT_EQ(sum.load(), 20001 * 9);
}

TEST(Workers, CallersMayChange) {
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

TEST(Workers, OneDnnInsideAMemberStartsNoThread) {
  const std::ptrdiff_t before = process_threads();
  {
    Workers workers(3);
    EXPECT_EQ(process_threads(), before + 2);
    std::atomic<int> members{0};
    workers.parallel_for(3, 1, [&](std::int64_t, std::int64_t) {
      run_matmul();
      EXPECT_EQ(process_threads(), before + 2);
      ++members;
    });
    EXPECT_EQ(members.load(), 3);
    // A caller that never entered a loop before has its own OpenMP setting.
    std::thread([&] {
      workers.parallel_for(3, 1, [&](std::int64_t, std::int64_t) { run_matmul(); });
      EXPECT_EQ(process_threads(), before + 3);
    }).join();
    EXPECT_EQ(process_threads(), before + 2);
  }
  EXPECT_EQ(process_threads(), before);
}

}  // namespace
}  // namespace tidemill::engines
