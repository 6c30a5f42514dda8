// SPDX-License-Identifier: Apache-2.0
// The oracle of sampling: it computes every step for the whole vocabulary and sorts it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "engines/sampling/mass_kernels.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {

/// What the oracle computes from a row of logits.
struct SortedRow {
  bool refused = false;              // a NaN, an infinite logit, or none above minus infinity
  std::int32_t greedy = -1;          // the token at temperature 0, else -1
  std::vector<float> masses;         // (V) 0 if dropped
  std::vector<double> logits;        // (V) after bias and penalties; minus infinity if dropped
  std::vector<double> block_sums;    // of `masses`
  std::vector<float> probabilities;  // (V)
  std::int64_t kept = 0;             // tokens whose logit is above minus infinity
};

namespace sorting {

constexpr double kDropped = -std::numeric_limits<double>::infinity();

inline void adjust(const SamplingOptions& options, const TokenHistory& history,
                   std::vector<double>& logits) {
  for (const auto& [token, bias] : options.logit_bias) {
    logits[static_cast<std::size_t>(token)] += static_cast<double>(bias);
  }
  std::map<std::int32_t, std::int64_t> counts;  // in the response, of all tokens of the history
  for (const std::int32_t token : history.prompt_ids) {
    counts.try_emplace(token, 0);
  }
  for (const std::int32_t token : history.output_ids) {
    ++counts[token];
  }
  const auto factor = static_cast<double>(options.repetition_penalty);
  for (const auto& [token, count] : counts) {
    double& logit = logits[static_cast<std::size_t>(token)];
    if (factor != 1.0) {
      logit = logit > 0.0 ? logit / factor : logit * factor;
    }
    if (count > 0) {
      logit -= static_cast<double>(options.frequency_penalty) * static_cast<double>(count) +
               static_cast<double>(options.presence_penalty);
    }
  }
}

inline void drop(std::size_t token, SortedRow& row) {
  row.logits[token] = kDropped;
  row.masses[token] = 0.0F;
}

inline void keep_top_k(std::int32_t k, SortedRow& row) {
  std::vector<double> sorted = row.logits;
  std::ranges::sort(sorted, std::greater<>());
  const double kth = sorted[std::min(static_cast<std::size_t>(k), sorted.size()) - 1];
  for (std::size_t i = 0; i < row.logits.size(); ++i) {
    if (row.logits[i] < kth) {
      drop(i, row);
    }
  }
}

inline void keep_top_p(float top_p, SortedRow& row) {
  const int bits = fixed_point_bits(row.logits.size());
  const auto mass_of = [&](std::size_t token) {
    return static_cast<std::uint64_t>(
        std::llrint(std::ldexp(static_cast<double>(row.masses[token]), bits)));
  };
  std::vector<std::size_t> order(row.logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return row.logits[a] != row.logits[b] ? row.logits[a] > row.logits[b] : a > b;
  });
  std::uint64_t total = 0;
  for (const std::size_t token : order) {
    total += mass_of(token);
  }
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  const std::uint64_t wanted =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(share)));
  std::uint64_t mass = 0;
  for (const std::size_t token : order) {
    if (mass >= wanted) {
      drop(token, row);
    } else {
      mass += mass_of(token);
    }
  }
}

// The order of `MassKernels::sum`, with all masses in memory.
inline double block_sum(std::span<const float> block) {
  std::array<double, 16> lanes{};
  const std::size_t whole = block.size() / 16 * 16;
  for (std::size_t i = 0; i < whole; ++i) {
    lanes[i % 16] += static_cast<double>(block[i]);
  }
  double sum = 0.0;
  for (const double lane : lanes) {
    sum += lane;
  }
  for (std::size_t i = whole; i < block.size(); ++i) {
    sum += static_cast<double>(block[i]);
  }
  return sum;
}

inline void sum_blocks(SortedRow& row) {
  const std::span<const float> masses(row.masses);
  double total = 0.0;
  for (std::size_t begin = 0; begin < masses.size(); begin += kMassBlock) {
    const auto size = std::min(kMassBlock, masses.size() - begin);
    row.block_sums.push_back(block_sum(masses.subspan(begin, size)));
    total += row.block_sums.back();
  }
  for (std::size_t i = 0; i < masses.size(); ++i) {
    row.probabilities[i] = static_cast<float>(static_cast<double>(masses[i]) / total);
    row.kept += row.logits[i] > kDropped ? 1 : 0;
  }
}

}  // namespace sorting

/// Computes the distribution that a token is sampled from. Requires a history inside the
/// vocabulary.
inline SortedRow sort_row(std::span<const float> logits, const SamplingOptions& options,
                          const TokenHistory& history) {
  SortedRow row;
  row.logits.assign(logits.begin(), logits.end());
  row.probabilities.assign(logits.size(), 0.0F);
  sorting::adjust(options, history, row.logits);
  double largest = sorting::kDropped;
  for (const double logit : row.logits) {
    row.refused |= std::isnan(logit);
    largest = std::max(largest, logit);
  }
  row.refused |= !std::isfinite(largest);
  if (row.refused) {
    return row;
  }
  if (options.temperature == 0.0F) {
    row.greedy =
        static_cast<std::int32_t>(std::ranges::find(row.logits, largest) - row.logits.begin());
    row.probabilities[static_cast<std::size_t>(row.greedy)] = 1.0F;
    row.kept = 1;
    return row;
  }
  for (const double logit : row.logits) {
    const auto below = static_cast<float>(logit - largest);
    row.masses.push_back(exp_nonpositive(below / options.temperature));
  }
  if (options.top_k > 0) {
    sorting::keep_top_k(options.top_k, row);
  }
  if (options.top_p < 1.0F) {
    sorting::keep_top_p(options.top_p, row);
  }
  for (std::size_t i = 0; i < row.masses.size(); ++i) {
    if (row.masses[i] < options.min_p) {
      sorting::drop(i, row);
    }
  }
  sorting::sum_blocks(row);
  return row;
}

/// Returns the token that `uniform` chooses. Requires a row that is not refused.
inline std::int32_t sample_sorted(const SortedRow& row, double uniform) {
  return row.greedy >= 0 ? row.greedy : sample_by_mass(row.masses, row.block_sums, uniform);
}

}  // namespace tidemill::engines
