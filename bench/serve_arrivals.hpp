// SPDX-License-Identifier: Apache-2.0
// Plans the requests of a load: when each is sent, and how long its prompt and its response are.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemill::bench {

/// A load of requests that arrive whether or not earlier ones have been answered.
struct ArrivalOptions {
  double rate = 1.0;  // requests per second
  /// Coefficient of variation of the time between arrivals. 1: Poisson arrivals. The `--burstiness`
  /// of vLLM's benchmark is 1 / cv^2.
  double cv = 1.0;
  double seconds = 60.0;            // requests arrive until then
  std::int64_t prompt_tokens = 64;  // median
  std::int64_t new_tokens = 64;     // median
  /// Standard deviation of the logarithm of both lengths. 0: all have the median.
  double length_sigma = 0.0;
  std::uint64_t seed = 1;
};

/// One request of a load.
struct PlannedRequest {
  double start_s = 0.0;  // from the start of the load
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;
};

/// Returns the requests in the order of their arrival. The times between them follow a gamma
/// distribution, the lengths a log-normal one, clamped to [1, four times the median]. Equal options
/// give equal requests.
[[nodiscard]] std::vector<PlannedRequest> plan_arrivals(const ArrivalOptions& options);

}  // namespace tidemill::bench
