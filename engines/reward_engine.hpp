// SPDX-License-Identifier: Apache-2.0
// Turns answers into rewards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/ids.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// One answer to score. `fields` is the data row as a JSON object, so that a reward may read any
/// key a user's file holds.
struct RewardRequest {
  SampleId id;
  std::string prompt;
  std::string response;
  std::string answer;  // the reference answer; empty when the row has none
  std::string fields;  // JSON object
};

/// The reward of one answer, or why there is none.
struct RewardResult {
  SampleId id;
  double reward = 0.0;
  std::string error;          // not empty: the sample could not be scored
  std::vector<double> parts;  // of a sum of rewards: each before its weight, in order; else empty
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RewardRequest& x) {
  return f(x.id, x.prompt, x.response, x.answer, x.fields);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RewardResult& x) {
  return f(x.id, x.reward, x.error, x.parts);
}

/// What an engine had to put up with so far; all zero where no outside program is asked.
struct RewardStats {
  std::uint64_t starts = 0;         // of the program, the first one included
  std::uint64_t ends = 0;           // unasked-for: it died, or closed its output
  std::uint64_t hangs = 0;          // it was killed because a sample's time was over
  std::uint64_t bad_answers = 0;    // for a sample in flight, without a finite reward
  std::uint64_t unknown_ids = 0;    // answers for no sample in flight
  std::uint64_t garbage_lines = 0;  // lines that are no answer at all
};

/// Says what a row's reference answer lacks to be judged against; empty: all answers are good.
using AnswerCheck = std::function<Status(const std::string& answer)>;

/// Receives results; called from inside `RewardEngine::step`.
class RewardSink {
public:
  virtual ~RewardSink() = default;
  virtual void on_reward(RewardResult result) = 0;
};

/// Scores answers.
///
/// Threads: one call at a time. `step` may wait up to `patience` for an outside program; nothing
/// else blocks.
class RewardEngine {
public:
  RewardEngine() = default;
  RewardEngine(const RewardEngine&) = delete;
  RewardEngine& operator=(const RewardEngine&) = delete;
  virtual ~RewardEngine() = default;

  /// Queues a request; its one result goes to `sink`, which must outlive it.
  [[nodiscard]] virtual Status submit(RewardRequest request, RewardSink& sink) = 0;
  [[nodiscard]] virtual bool has_work() const = 0;
  /// Delivers the results that are there; waits for one at most `patience`.
  /// Fails when the engine has given up; all samples it held then got their error before.
  [[nodiscard]] virtual Status step(Duration patience) = 0;
  [[nodiscard]] virtual RewardStats stats() const { return {}; }
};

}  // namespace tidemill::engines
