// SPDX-License-Identifier: Apache-2.0
// Puts load on a server of OpenAI's completions API and measures when its tokens arrive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "bench/serve_arrivals.hpp"

namespace tidemill::bench {

/// The server, and a load of streams, each of which sends one request after another.
struct TrafficOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string model;
  std::string extra_body;  // JSON members of each request: `"top_k":20,"min_p":0.1`
  int streams = 1;
  int requests = 4;  // of each stream
  std::int64_t prompt_tokens = 64;
  std::int64_t new_tokens = 64;
  /// Prompts consist of random token ids from 10 to `vocabulary` - 1.
  std::int64_t vocabulary = 1000;
  std::uint64_t seed = 1;
};

/// When a streamed response arrived, counted from just before its connection was opened. Times are
/// those of server-sent events; a server may put several tokens into one.
struct ResponseTimes {
  double ttft_s = 0.0;     // until the first event
  double done_s = 0.0;     // until `data: [DONE]`
  double max_gap_s = 0.0;  // between two events; those received together have no gap
  std::int64_t new_tokens = 0;

  /// Returns the mean time of a token after the first (TPOT).
  [[nodiscard]] double tpot_s() const noexcept {
    return new_tokens > 1 ? (done_s - ttft_s) / static_cast<double>(new_tokens - 1) : 0.0;
  }
};

/// The responses of all streams.
struct TrafficTimes {
  std::vector<ResponseTimes> responses;
  double seconds = 0.0;  // until the last response had ended
  std::vector<Status> failures;

  [[nodiscard]] std::int64_t new_tokens() const noexcept;
};

/// Applies the load of streams and returns once all responses have ended. Starts a thread for each
/// stream.
/// Errors: `kUnavailable` naming the address, if the server refuses a request, sends nothing for a
/// minute, or returns another number of tokens than it was asked for.
[[nodiscard]] Result<TrafficTimes> run_traffic(const TrafficOptions& options);

/// Sends each request at its time, whether or not earlier ones have been answered, and returns once
/// all have ended. Starts a thread for each request. `failures` tells which failed, with the errors
/// of `run_traffic`. `streams`, `requests` and the lengths of `options` do not apply.
[[nodiscard]] TrafficTimes run_arrivals(const TrafficOptions& options,
                                        const std::vector<PlannedRequest>& requests);

/// Measures how long `count` requests for `path` take, one after another on one connection.
/// Returns the times in ascending order. Units: seconds. Errors: as `run_traffic`.
[[nodiscard]] Result<std::vector<double>> time_requests(const TrafficOptions& options,
                                                        const std::string& path, int count);

/// Returns the value at the index round(`quantile` * (n - 1)) of n values, or 0 if there are none.
/// Requires ascending values and a quantile in [0, 1].
[[nodiscard]] double quantile_of(const std::vector<double>& values, double quantile);

}  // namespace tidemill::bench
