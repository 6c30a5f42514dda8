// SPDX-License-Identifier: Apache-2.0
// The quickstart's task: two-digit addition, one token a digit, and who sees which problems.
//
// A prompt is "17+25=", its answer "42". There are 8,100 problems: both numbers from 10 to 99.
//
// Evaluation problems are kept apart by a hash of the problem. A problem and its mirror image
// (17+25, 25+17) have one hash: 64 bits keyed by the seed and `smaller number * 100 + larger one`.
// The 200 pairs with the smallest hashes are held out in both orders; one order of each, which the
// hash's lowest bit picks, is an evaluation problem. All other problems are there to be trained on.
//
// Supervised answers slip on purpose. Each problem to train on comes in five rows, and in three of
// them the carry from the ones to the tens is forgotten (17+25=32): 60% of the rows. Problems
// without that carry (55% of all) have no answer to get wrong. A model that learns from this can
// add, and often does not: that is what reinforcement learning mends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tidemill::examples {

/// One sum to be computed. Both numbers have two digits.
struct Problem {
  int left = 10;
  int right = 10;
  friend bool operator==(const Problem&, const Problem&) = default;
};

/// Returns what the model is given: "17+25=".
[[nodiscard]] std::string prompt_of(const Problem& problem);

/// Returns the sum.
[[nodiscard]] int right_answer(const Problem& problem) noexcept;

/// Returns the sum without the carry from the ones to the tens: 10 too little, or the right one
/// when there is no such carry.
[[nodiscard]] int answer_without_carry(const Problem& problem) noexcept;

/// The problems of one seed, both lists ordered by left and right number.
struct AdditionTask {
  static constexpr std::size_t kNumEval = 200;
  /// Supervised rows of one problem, and how many of them forget the carry.
  static constexpr int kRowsPerProblem = 5;
  static constexpr int kSlipsPerProblem = 3;

  std::vector<Problem> train;
  std::vector<Problem> eval;

  /// Divides all problems. Bits of `seed` decide; nothing else does, on any machine.
  [[nodiscard]] static AdditionTask of_seed(std::uint64_t seed);
};

/// The seed of the committed files: the first that holds out carries in their true share, 45%, so
/// that the evaluation is neither easier nor harder than the task.
inline constexpr std::uint64_t kTaskSeed = 3;

/// Returns JSON lines {"prompt": ..., "answer": ...} with the right answers.
[[nodiscard]] std::string prompt_rows(std::span<const Problem> problems);

/// Returns the supervised JSON lines of `problems`: all rows of one problem together, those that
/// forget the carry first.
[[nodiscard]] std::string supervised_rows(std::span<const Problem> problems);

}  // namespace tidemill::examples
