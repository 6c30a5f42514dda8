// SPDX-License-Identifier: Apache-2.0
// The task of the quickstart: two-digit addition, one token per digit. Defines which problems are
// for training and which for evaluation.
//
// A prompt is "17+25=", its answer "42". There are 8,100 problems: both numbers are from 10 to 99.
//
// A hash selects the evaluation problems. A problem and its mirror image (17+25, 25+17) share a
// hash: 64 bits keyed by the seed and `smaller number * 100 + larger number`. The 200 pairs with
// the smallest hashes are held out in both orders. One order of each, chosen by the lowest bit of
// the hash, is an evaluation problem. All other problems are for training.
//
// The supervised rows contain deliberate mistakes. Each training problem has five rows, and three
// of them (60%) forget the carry from the ones to the tens (17+25=32). All rows of problems without
// that carry (55% of all) are correct. A model that learns from these rows can add, but often makes
// the mistake, and reinforcement learning corrects that.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tidemill::examples {

/// One sum to compute. Both numbers have two digits.
struct Problem {
  int left = 10;
  int right = 10;
  friend bool operator==(const Problem&, const Problem&) = default;
};

/// Returns the prompt, e.g. "17+25=".
[[nodiscard]] std::string prompt_of(const Problem& problem);

/// Returns the sum.
[[nodiscard]] int correct_answer(const Problem& problem) noexcept;

/// Returns the sum without the carry from the ones to the tens: 10 less than the correct sum, or
/// the correct sum if there is no such carry.
[[nodiscard]] int answer_without_carry(const Problem& problem) noexcept;

/// The problems of one seed. Both lists are sorted by left and then by right number.
struct AdditionTask {
  static constexpr std::size_t kNumEval = 200;
  /// Number of supervised rows of a problem, and how many of them forget the carry.
  static constexpr int kRowsPerProblem = 5;
  static constexpr int kSlipsPerProblem = 3;

  std::vector<Problem> train;
  std::vector<Problem> eval;

  /// Divides all problems into training and evaluation. The result depends only on `seed` and is
  /// the same on all machines.
  [[nodiscard]] static AdditionTask of_seed(std::uint64_t seed);
};

/// The seed of the committed files. It is the first one with which 45% of the evaluation problems
/// have a carry, as in the whole task, so that the evaluation is neither easier nor harder than the
/// task.
inline constexpr std::uint64_t kTaskSeed = 3;

/// Returns JSON lines {"prompt": ..., "answer": ...} with the correct answers.
[[nodiscard]] std::string prompt_rows(std::span<const Problem> problems);

/// Returns the supervised JSON lines of `problems`. The rows of a problem are consecutive, and
/// those that forget the carry come first.
[[nodiscard]] std::string supervised_rows(std::span<const Problem> problems);

}  // namespace tidemill::examples
