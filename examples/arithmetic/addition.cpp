// SPDX-License-Identifier: Apache-2.0
#include "examples/arithmetic/addition.hpp"

#include <algorithm>

#include "base/random.hpp"

namespace tidemill::examples {
namespace {

constexpr int kSmallest = 10;
constexpr int kLargest = 99;
constexpr std::uint64_t kHashStream = 0;

// A problem together with its mirror image.
struct Pair {
  std::uint64_t hash = 0;
  int smaller = 0;
  int larger = 0;
};

std::vector<Pair> all_pairs(std::uint64_t seed) {
  std::vector<Pair> pairs;
  for (int smaller = kSmallest; smaller <= kLargest; ++smaller) {
    for (int larger = smaller; larger <= kLargest; ++larger) {
      const int name = smaller * 100 + larger;
      pairs.push_back(
          {keyed_bits(seed, kHashStream, static_cast<std::uint64_t>(name)), smaller, larger});
    }
  }
  return pairs;
}

std::string row(const Problem& problem, int answer) {
  return R"({"prompt": ")" + prompt_of(problem) + R"(", "answer": ")" + std::to_string(answer) +
         "\"}\n";
}

}  // namespace

std::string prompt_of(const Problem& problem) {
  return std::to_string(problem.left) + "+" + std::to_string(problem.right) + "=";
}

int correct_answer(const Problem& problem) noexcept {
  return problem.left + problem.right;
}

int answer_without_carry(const Problem& problem) noexcept {
  const bool carries = problem.left % 10 + problem.right % 10 >= 10;
  return correct_answer(problem) - (carries ? 10 : 0);
}

AdditionTask AdditionTask::of_seed(std::uint64_t seed) {
  std::vector<Pair> pairs = all_pairs(seed);
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return a.hash != b.hash ? a.hash < b.hash
                            : a.smaller * 100 + a.larger < b.smaller * 100 + b.larger;
  });
  AdditionTask task;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    const Problem straight{pair.smaller, pair.larger};
    const Problem mirrored{pair.larger, pair.smaller};
    if (i < kNumEval) {
      task.eval.push_back((pair.hash & 1U) == 0 ? straight : mirrored);
      continue;
    }
    task.train.push_back(straight);
    if (straight != mirrored) {
      task.train.push_back(mirrored);
    }
  }
  for (std::vector<Problem>* problems : {&task.train, &task.eval}) {
    std::sort(problems->begin(), problems->end(), [](const Problem& a, const Problem& b) {
      return a.left * 100 + a.right < b.left * 100 + b.right;
    });
  }
  return task;
}

std::string prompt_rows(std::span<const Problem> problems) {
  std::string text;
  for (const Problem& problem : problems) {
    text += row(problem, correct_answer(problem));
  }
  return text;
}

std::string supervised_rows(std::span<const Problem> problems) {
  std::string text;
  for (const Problem& problem : problems) {
    for (int i = 0; i < AdditionTask::kRowsPerProblem; ++i) {
      const bool slips = i < AdditionTask::kSlipsPerProblem;
      text += row(problem, slips ? answer_without_carry(problem) : correct_answer(problem));
    }
  }
  return text;
}

}  // namespace tidemill::examples
