// SPDX-License-Identifier: Apache-2.0
// Simulates admission by forecast. The lengths of responses are unknown in advance, and some are
// very long. Still, the cache is well used and hardly any token is computed twice.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/scheduler/simulated_generation.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kMaxResponseTokens = 2048;
constexpr std::int64_t kRequests = 6000;

double uniform(RandomStream& random) {
  return (static_cast<double>(random.below(1U << 30U)) + 0.5) / (1U << 30U);
}

// Half of the responses are shorter than 120 tokens. The longest tenth has half of all tokens.
std::int64_t lognormal_length(RandomStream& random) {
  const double normal = std::sqrt(-2.0 * std::log(uniform(random))) *
                        std::cos(2.0 * 3.14159265358979 * uniform(random));
  return static_cast<std::int64_t>(std::exp(std::log(120.0) + 1.2 * normal));
}

// Without the limit on lengths, the variance would be infinite.
std::int64_t pareto_length(RandomStream& random) {
  return static_cast<std::int64_t>(60.0 * std::pow(uniform(random), -1.0 / 1.5));
}

struct Lengths {
  const char* name;
  std::int64_t (*next)(RandomStream&);
};

class PlannerSimulation : public ::testing::TestWithParam<Lengths> {};

TEST_P(PlannerSimulation, UsesTheCacheAndHardlyPreempts) {
  constexpr std::uint64_t kSeeds = 6;
  double mean_utilization = 0.0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    PlannerOptions options;
    options.max_running = 1 << 20;
    SimulatedGeneration generation(4000, options, SimulatedGeneration::Pages::kCounted);
    RandomStream random(777, seed);  // the margins were tuned on other streams
    for (std::int64_t i = 0; i < kRequests; ++i) {
      SimulatedRequest request;
      request.prompt.resize(20 + random.below(80));
      for (std::int32_t& token : request.prompt) {
        token = static_cast<std::int32_t>(random.below(50));
      }
      request.max_new_tokens = kMaxResponseTokens;
      request.response_length =
          std::clamp<std::int64_t>(GetParam().next(random), 1, kMaxResponseTokens);
      request.seed = seed * kRequests + static_cast<std::uint64_t>(i);
      generation.submit(std::move(request));
    }
    // Measures from when the first responses have made room for others until too few wait to fill
    // the cache.
    double used = 0.0;
    std::int64_t counted = 0;
    while (generation.totals().finished < kRequests * 9 / 10) {
      generation.step({2048, 2048});
      if (generation.totals().finished > kRequests / 4) {
        used += generation.utilization();
        ++counted;
      }
    }
    const double utilization = used / static_cast<double>(counted);
    const double preempted = static_cast<double>(generation.totals().preempted_requests) /
                             static_cast<double>(generation.totals().finished);
    std::cout << "[ measured ] " << GetParam().name << " seed " << seed << ": " << utilization
              << " of the pages used, " << preempted << " of the requests preempted\n";
    EXPECT_LE(preempted, 0.01) << "seed " << seed;
    mean_utilization += utilization / kSeeds;
  }
  EXPECT_GE(mean_utilization, 0.90);
}

INSTANTIATE_TEST_SUITE_P(HeavyTails, PlannerSimulation,
                         ::testing::Values(Lengths{"lognormal", lognormal_length},
                                           Lengths{"pareto", pareto_length}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tidemill::engines
