// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/iteration_times.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tidemill::engines {
namespace {

constexpr double kDecay = 0.98;  // per iteration
// Keeps the system solvable if a term never varies. Relative to the term's own sum of squares.
constexpr double kRidge = 1e-6;
// Tokens are counted in these units, so that the sums have similar sizes.
constexpr double kTokens = 64.0;
constexpr double kPositions = 4096.0;

}  // namespace

IterationTimes::Terms IterationTimes::terms_of(const IterationLoad& load) {
  return {1.0, static_cast<double>(load.decode_tokens) / kTokens,
          static_cast<double>(load.prefill_tokens) / kTokens,
          static_cast<double>(load.read_tokens) / kPositions};
}

void IterationTimes::add(const IterationLoad& load, Duration spent) {
  const Terms terms = terms_of(load);
  const double seconds = std::chrono::duration<double>(spent).count();
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      products_[i][j] = kDecay * products_[i][j] + terms[i] * terms[j];
    }
    moments_[i] = kDecay * moments_[i] + terms[i] * seconds;
  }
  fit();
}

// Solves the normal equations. A term with a negative coefficient is left out, because more work
// never takes less time: the one that is most negative first.
void IterationTimes::fit() {
  std::array<bool, kTerms> used{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    used[i] = products_[i][i] > 0.0;
  }
  for (std::size_t attempt = 0; attempt < kTerms; ++attempt) {
    std::array<Terms, kTerms> a{};
    Terms x{};
    for (std::size_t i = 0; i < kTerms; ++i) {
      for (std::size_t j = 0; j < kTerms; ++j) {
        a[i][j] = used[i] && used[j] ? products_[i][j] : 0.0;
      }
      a[i][i] = used[i] ? products_[i][i] * (1.0 + kRidge) : 1.0;
      x[i] = used[i] ? moments_[i] : 0.0;
    }
    for (std::size_t k = 0; k < kTerms; ++k) {  // symmetric and positive definite: no pivots
      for (std::size_t i = k + 1; i < kTerms; ++i) {
        const double factor = a[i][k] / a[k][k];
        for (std::size_t j = k; j < kTerms; ++j) {
          a[i][j] -= factor * a[k][j];
        }
        x[i] -= factor * x[k];
      }
    }
    for (std::size_t k = kTerms; k-- > 0;) {
      for (std::size_t j = k + 1; j < kTerms; ++j) {
        x[k] -= a[k][j] * x[j];
      }
      x[k] /= a[k][k];
    }
    const auto lowest = std::min_element(x.begin(), x.end());
    if (*lowest >= 0.0) {
      coefficients_ = x;
      return;
    }
    used[static_cast<std::size_t>(lowest - x.begin())] = false;
  }
  coefficients_ = {};
}

Duration IterationTimes::predict(const IterationLoad& load) const {
  const Terms terms = terms_of(load);
  double seconds = 0.0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    seconds += coefficients_[i] * terms[i];
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::int64_t IterationTimes::prefill_within(const IterationLoad& load, Duration limit,
                                            std::int64_t max_tokens) const {
  if (products_[2][2] <= 0.0) {
    return std::min(max_tokens, kFirstPrefill);
  }
  const double per_token = coefficients_[2] / kTokens;
  const double left = std::chrono::duration<double>(limit - predict(load)).count();
  if (per_token <= 0.0 || left >= per_token * static_cast<double>(max_tokens)) {
    return max_tokens;
  }
  const auto fits = static_cast<std::int64_t>(std::max(0.0, left) / per_token);
  return std::clamp(fits, std::min(kMinPrefill, max_tokens), max_tokens);
}

std::int64_t IterationTimes::efficient_prefill() const {
  if (products_[2][2] <= 0.0) {
    return kFirstPrefill;
  }
  const double constant = kEfficientTimes * coefficients_[0];
  const double per_token = coefficients_[2] / kTokens;
  if (constant >= per_token * static_cast<double>(kMaxEfficient)) {
    return kMaxEfficient;
  }
  return std::max(kMinPrefill, static_cast<std::int64_t>(std::ceil(constant / per_token)));
}

}  // namespace tidemill::engines
