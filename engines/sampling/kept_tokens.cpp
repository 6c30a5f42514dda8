// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/kept_tokens.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/check.hpp"
#include "engines/sampling/choose_by_mass.hpp"

namespace tidemill::engines {
namespace {

// So few candidates are compared without a histogram.
constexpr std::size_t kFewTokens = 64;

}  // namespace

std::uint64_t top_p_target(float top_p, std::uint64_t total) noexcept {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(wanted)));
}

std::uint64_t KeptTokens::fixed_point_sum(int bits, float min) const noexcept {
  std::uint64_t sum = 0;
  for (const Candidate& candidate : tokens_) {
    sum += candidate.mass >= min ? fixed_point_mass(candidate.mass, bits) : 0;
  }
  return sum;
}

void KeptTokens::keep_top_k(std::int32_t k) {
  if (static_cast<std::size_t>(k) >= tokens_.size()) {
    return;
  }
  logits_.clear();
  for (const Candidate& candidate : tokens_) {
    logits_.push_back(candidate.logit);
  }
  const auto kth = logits_.begin() + (k - 1);
  std::nth_element(logits_.begin(), kth, logits_.end(), std::greater<>());
  const double min = *kth;
  std::erase_if(tokens_, [&](const Candidate& candidate) { return candidate.logit < min; });
}

// Divides the undecided tokens at their median logit until the threshold is found. Each division
// halves what is left to search.
KeptTokens::Threshold KeptTokens::find_threshold(std::uint64_t wanted, int bits) {
  std::span<Candidate> left(undecided_);
  const auto fixed_point_of = [&](const Candidate& one) {
    return fixed_point_mass(one.mass, bits);
  };
  const auto sum_of = [&](std::span<const Candidate> some) {
    std::uint64_t sum = 0;
    for (const Candidate& one : some) {
      sum += fixed_point_of(one);
    }
    return sum;
  };
  while (true) {
    TIDEMILL_CHECK(!left.empty()) << wanted;
    const auto middle = left.begin() + std::ssize(left) / 2;
    std::nth_element(left.begin(), middle, left.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    const double pivot = middle->logit;
    const auto equal = std::partition(left.begin(), middle,
                                      [&](const Candidate& one) { return one.logit > pivot; });
    const auto rest = std::partition(middle, left.end(),
                                     [&](const Candidate& one) { return one.logit == pivot; });
    const std::uint64_t larger = sum_of({left.begin(), equal});
    if (larger >= wanted) {
      left = {left.begin(), equal};
      continue;
    }
    wanted -= larger;
    const std::uint64_t equals = sum_of({equal, rest});
    if (equals >= wanted) {
      const std::uint64_t each = fixed_point_of(*equal);
      return {pivot, (wanted + each - 1) / each};
    }
    wanted -= equals;
    left = {rest, left.end()};
  }
}

void KeptTokens::keep_top_p(std::uint64_t wanted, int bits) {
  MassRange range;
  if (tokens_.size() > kFewTokens) {
    histogram_.clear();
    for (const Candidate& one : tokens_) {
      histogram_.add(one.mass, fixed_point_mass(one.mass, bits));
    }
    range = histogram_.bucket_reaching(wanted).range;
  }
  const float min = rounding_margin_below(range.min);
  const float max = rounding_margin_above(range.max);
  undecided_.clear();
  for (const Candidate& one : tokens_) {
    if (one.mass > max) {
      wanted -= fixed_point_mass(one.mass, bits);
    } else if (one.mass >= min) {
      undecided_.push_back(one);
    }
  }
  const Threshold threshold = find_threshold(wanted, bits);
  std::uint64_t dropped_ties = static_cast<std::uint64_t>(std::ranges::count(
                                   undecided_, threshold.logit, &Candidate::logit)) -
                               threshold.ties;
  std::erase_if(tokens_, [&](const Candidate& one) {
    if (one.logit == threshold.logit && dropped_ties > 0) {
      --dropped_ties;  // candidates are in token order
      return true;
    }
    return one.logit < threshold.logit;
  });
}

void KeptTokens::keep_min_p(float min_p) {
  std::erase_if(tokens_, [&](const Candidate& one) { return one.mass < min_p; });
}

KeptTokens::Block KeptTokens::next_block(std::size_t first, std::size_t vocabulary) const {
  const std::size_t begin =
      static_cast<std::size_t>(tokens_[first].token) / kMassBlock * kMassBlock;
  const std::size_t size = std::min(kMassBlock, vocabulary - begin);
  const std::size_t whole = size / kMassLanes * kMassLanes;
  Block block{first, first, 0.0};
  std::array<double, kMassLanes> lanes{};
  const auto at = [&] { return static_cast<std::size_t>(tokens_[block.end].token) - begin; };
  for (; block.end < tokens_.size() && at() < whole; ++block.end) {
    lanes[at() % kMassLanes] += static_cast<double>(tokens_[block.end].mass);
  }
  for (const double lane : lanes) {
    block.sum += lane;
  }
  for (; block.end < tokens_.size() && at() < size; ++block.end) {
    block.sum += static_cast<double>(tokens_[block.end].mass);
  }
  return block;
}

double KeptTokens::sum(std::size_t vocabulary) {
  blocks_.clear();
  double total = 0.0;
  for (std::size_t first = 0; first < tokens_.size();) {
    blocks_.push_back(next_block(first, vocabulary));
    total += blocks_.back().sum;
    first = blocks_.back().end;
  }
  return total;
}

std::int32_t KeptTokens::sample(std::size_t vocabulary, double uniform) {
  double left = uniform * sum(vocabulary);
  const std::size_t chosen = choose_by_mass(
      blocks_.size(), [&](std::size_t b) { return blocks_[b].sum; }, left);
  const Block& block = blocks_[chosen];
  const std::size_t offset = choose_by_mass(
      block.end - block.first,
      [&](std::size_t i) { return static_cast<double>(tokens_[block.first + i].mass); }, left);
  return tokens_[block.first + offset].token;
}

}  // namespace tidemill::engines
