// SPDX-License-Identifier: Apache-2.0
// The interface of engines that score responses.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/ids.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// The largest magnitude of a reward. The squares of rewards up to it are far from overflow, so
/// standard deviations of rewards are finite.
inline constexpr double kMaxReward = 1e30;

/// Returns whether `value` can be a reward: a finite number of at most `kMaxReward` in magnitude.
[[nodiscard]] inline bool is_reward(double value) noexcept {
  return std::abs(value) <= kMaxReward;  // false for NaN
}

/// One response to score. `fields` holds the whole row of data as a JSON object, so that a scorer
/// can read any key of the user's file.
struct RewardRequest {
  SampleId id;
  std::string prompt;
  std::string response;
  std::string reference_answer;  // empty if the row has none
  std::string fields;            // JSON object
};

/// The reward of one response, or the reason why it has none.
struct RewardResult {
  SampleId id;
  double reward = 0.0;
  std::string error;          // not empty if the sample could not be scored
  std::vector<double> parts;  // the unweighted terms of a weighted sum, in order; else empty
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RewardRequest& x) {
  return f(x.id, x.prompt, x.response, x.reference_answer, x.fields);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RewardResult& x) {
  return f(x.id, x.reward, x.error, x.parts);
}

/// Counts the starts and failures of an external scoring program since the engine was created. All
/// counts are zero for engines that run no program.
struct RewardStats {
  std::uint64_t starts = 0;         // of the program, including the first
  std::uint64_t ends = 0;           // it exited, or closed its input or output, on its own
  std::uint64_t hangs = 0;          // it was killed because a sample exceeded its time limit
  std::uint64_t bad_replies = 0;    // to a sample in flight, without a reward (see `is_reward`)
  std::uint64_t unknown_ids = 0;    // replies to a sample that is not in flight
  std::uint64_t garbage_lines = 0;  // lines that are not replies
};

/// Checks that a scorer can compare responses with a row's reference answer. Returns an error that
/// says what is wrong with the answer. An empty function accepts every answer.
using ReferenceAnswerCheck = std::function<Status(const std::string& answer)>;

/// Receives results. `RewardEngine::step` calls it.
class RewardSink {
public:
  virtual ~RewardSink() = default;
  virtual void on_reward(RewardResult result) = 0;
};

/// Scores responses.
///
/// Threads: one call at a time. `step` may wait up to `patience` for an external program. No other
/// call blocks.
class RewardEngine {
public:
  RewardEngine() = default;
  RewardEngine(const RewardEngine&) = delete;
  RewardEngine& operator=(const RewardEngine&) = delete;
  virtual ~RewardEngine() = default;

  /// Queues `request`. Its single result goes to `sink`, which must outlive the request.
  /// Errors: `kUnavailable` if the engine no longer accepts requests; any other code concerns only
  /// this request.
  [[nodiscard]] virtual Status submit(RewardRequest request, RewardSink& sink) = 0;
  [[nodiscard]] virtual bool has_work() const = 0;
  /// Delivers the results that are ready. If none is, waits up to `patience` for one.
  /// Errors: `kUnavailable` once the engine has given up. By then it has delivered an error for
  /// every sample that it held.
  [[nodiscard]] virtual Status step(Duration patience) = 0;
  [[nodiscard]] virtual RewardStats stats() const { return {}; }
};

}  // namespace tidemill::engines
