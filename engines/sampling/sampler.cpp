// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/sampler.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/random.hpp"

namespace tidemill::engines {
namespace {

Status out_of_range(const std::string& name, const std::string& range) {
  return invalid_argument("sampling." + name + " must be " + range);
}

Status check_largest(const Largest& largest) {
  if (largest.has_nan) {
    return {Errc::kInternal, "a logit is nan"};
  }
  if (!std::isfinite(largest.value)) {
    return {Errc::kInternal, "the largest logit is infinite"};
  }
  return {};
}

// Returns the mass that `MassKernels::compute_masses` computes.
float mass_of(double logit, double largest, float temperature) {
  return exp_nonpositive(static_cast<float>(logit - largest) / temperature);
}

// Returns whether top-k can drop a token.
bool selects(const SamplingOptions& options, std::size_t vocabulary) {
  return options.top_k > 0 && static_cast<std::size_t>(options.top_k) < vocabulary;
}

void keep_larger(const Largest& other, Largest& largest) {
  largest.value = std::max(largest.value, other.value);
  largest.has_nan |= other.has_nan;
}

}  // namespace

Status validate(const SamplingOptions& options, std::int64_t vocabulary) {
  if (!std::isfinite(options.temperature) || options.temperature < 0.0F) {
    return out_of_range("temperature", "finite and at least 0");
  }
  if (options.temperature > 0.0F && options.temperature < kMinTemperature) {
    return out_of_range("temperature", "0 or at least 0.001");
  }
  if (options.top_k < 0) {
    return out_of_range("top_k", "at least 0");
  }
  if (!(options.top_p > 0.0F && options.top_p <= 1.0F)) {
    return out_of_range("top_p", "in (0, 1]");
  }
  if (!(options.min_p >= 0.0F && options.min_p <= 1.0F)) {
    return out_of_range("min_p", "in [0, 1]");
  }
  if (!std::isfinite(options.repetition_penalty) || options.repetition_penalty <= 0.0F) {
    return out_of_range("repetition_penalty", "finite and above 0");
  }
  if (!std::isfinite(options.frequency_penalty) || !std::isfinite(options.presence_penalty)) {
    return out_of_range("frequency_penalty and presence_penalty", "finite");
  }
  for (const auto& [token, bias] : options.logit_bias) {
    if (token < 0 || token >= vocabulary) {
      return out_of_range("logit_bias", "on tokens in 0.." + std::to_string(vocabulary - 1) +
                                            ", not " + std::to_string(token));
    }
    if (!std::isfinite(bias)) {
      return out_of_range("logit_bias", "finite (token " + std::to_string(token) + ")");
    }
  }
  return {};
}

Sampler::Sampler(const MassKernels& kernels)
    : Sampler(kernels, [](std::size_t count, const auto& body) { body(0, count); }) {}

Sampler::Sampler(const MassKernels& kernels, BlockLoop loop)
    : kernels_(&kernels), loop_(std::move(loop)) {}

Largest Sampler::find_largest() {
  block_largest_.resize(adjusted_.num_blocks());
  loop_(adjusted_.num_blocks(), [this](std::size_t begin, std::size_t end) {
    std::array<float, kMassBlock> copy;
    for (std::size_t b = begin; b < end; ++b) {
      const std::span<const float> block = adjusted_.block(b, copy);
      block_largest_[b] = kernels_->largest(block.data(), block.size());
    }
  });
  Largest largest{-std::numeric_limits<double>::infinity(), false};
  for (const Largest& block : block_largest_) {
    keep_larger(block, largest);
  }
  for (const AdjustedLogits::Changed& changed : adjusted_.changed()) {
    keep_larger({changed.logit, std::isnan(changed.logit)}, largest);
  }
  return largest;
}

std::int32_t Sampler::first_equal(double largest) const {
  auto first = static_cast<std::int32_t>(adjusted_.size());
  for (const AdjustedLogits::Changed& changed : adjusted_.changed()) {
    if (changed.logit == largest) {
      first = std::min(first, changed.token);
    }
  }
  std::array<float, kMassBlock> copy;
  for (std::size_t b = 0; b < block_largest_.size(); ++b) {
    if (block_largest_[b].value == largest) {
      const std::span<const float> block = adjusted_.block(b, copy);
      const auto at = std::ranges::find(block, static_cast<float>(largest)) - block.begin();
      return std::min(first,
                      static_cast<std::int32_t>(b * kMassBlock) + static_cast<std::int32_t>(at));
    }
  }
  return first;
}

void Sampler::compute_block(std::size_t block, float temperature) {
  std::array<float, kMassBlock> copy;
  const std::span<const float> logits = adjusted_.block(block, copy);
  float* masses = masses_.data() + block * kMassBlock;
  kernels_->compute_masses(logits.data(), logits.size(), largest_, temperature, masses);
  adjusted_.each_changed(block, [&](const AdjustedLogits::Changed& changed) {
    masses_[static_cast<std::size_t>(changed.token)] =
        mass_of(changed.logit, largest_, temperature);
  });
}

// Collects, in token order, all tokens with at least `least_mass`.
void Sampler::collect(float least_mass, float temperature) {
  kept_.clear();
  std::array<std::int32_t, kMassBlock> found;
  for (std::size_t b = 0; b < adjusted_.num_blocks(); ++b) {
    // The mass of its largest logit bounds the masses of a block without changed logits.
    const float bound = mass_of(block_largest_[b].value, largest_, temperature);
    if (bound < with_rounding_margin(least_mass) && !adjusted_.changes(b)) {
      continue;
    }
    const std::size_t begin = b * kMassBlock;
    const float* masses = masses_.data() + begin;
    const std::size_t size = std::min(kMassBlock, adjusted_.size() - begin);
    const std::size_t count = kernels_->find(masses, size, least_mass, found.data());
    for (const std::int32_t i : std::span(found).first(count)) {
      const auto at = static_cast<std::size_t>(i);
      const double logit = adjusted_.at(begin + at);
      if (logit > -std::numeric_limits<double>::infinity()) {
        kept_.add({logit, masses[at], static_cast<std::int32_t>(begin + at)});
      }
    }
  }
}

// Returns a mass that the tokens reach which top-k keeps.
float Sampler::least_top_k_mass(const SamplingOptions& options) {
  // Each of these is the logit of another token.
  bounds_.clear();
  for (const Largest& block : block_largest_) {
    bounds_.push_back(block.value);
  }
  for (const AdjustedLogits::Changed& changed : adjusted_.changed()) {
    bounds_.push_back(changed.logit);
  }
  if (static_cast<std::size_t>(options.top_k) <= bounds_.size()) {
    const auto kth = bounds_.begin() + (options.top_k - 1);
    std::nth_element(bounds_.begin(), kth, bounds_.end(), std::greater<>());
    return with_rounding_margin(mass_of(*kth, largest_, options.temperature));
  }
  histogram_.clear();
  for (const float mass : masses_) {
    histogram_.add(mass, 1);
  }
  const MassRange range = histogram_.bucket_reaching(static_cast<std::uint64_t>(options.top_k));
  return with_rounding_margin(std::bit_cast<float>(range.first));
}

// Collects tokens until those with the largest masses have the fixed-point mass `wanted` together.
void Sampler::collect_mass(std::uint64_t wanted, float temperature) {
  const int bits = fixed_point_bits(adjusted_.size());
  // Few tokens of most distributions have more than the first bound. Each bound is a sixteenth of
  // the one before, until it is less than half of the smallest fixed-point mass.
  for (int exponent = -6; exponent > -60; exponent -= 4) {
    const float least = std::ldexp(1.0F, exponent);
    collect(with_rounding_margin(least), temperature);
    if (kept_.fixed_point_sum(bits, least) >= wanted) {
      return;
    }
  }
  collect(0.0F, temperature);
}

void Sampler::filter(const SamplingOptions& options) {
  const int bits = fixed_point_bits(adjusted_.size());
  if (selects(options, adjusted_.size())) {
    collect(least_top_k_mass(options), options.temperature);
    kept_.keep_top_k(options.top_k);
    if (options.top_p < 1.0F) {
      kept_.keep_top_p(top_p_target(options.top_p, kept_.fixed_point_sum(bits, 0.0F)), bits);
    }
  } else if (options.top_p < 1.0F) {
    std::uint64_t total = 0;
    for (const std::uint64_t mass : block_fixed_point_) {
      total += mass;
    }
    const std::uint64_t wanted = top_p_target(options.top_p, total);
    collect_mass(wanted, options.temperature);
    kept_.keep_top_p(wanted, bits);
  } else {
    collect(options.min_p, options.temperature);
  }
  if (options.min_p > 0.0F) {
    kept_.keep_min_p(options.min_p);
  }
}

Result<Sampler::Kept> Sampler::compute_masses(std::span<const float> logits,
                                              const SamplingOptions& options,
                                              const TokenHistory& history) {
  TIDEMILL_RETURN_IF_ERROR(adjusted_.apply(logits, options, history));
  const Largest largest = find_largest();
  TIDEMILL_RETURN_IF_ERROR(check_largest(largest));
  largest_ = largest.value;
  if (options.temperature == 0.0F) {
    greedy_ = first_equal(largest_);
    return Kept::kGreedy;
  }
  const bool filters = options.top_k > 0 || options.top_p < 1.0F || options.min_p > 0.0F;
  const bool adds_fixed_point = options.top_p < 1.0F && !selects(options, logits.size());
  const int bits = fixed_point_bits(logits.size());
  masses_.resize(logits.size());
  block_sums_.resize(adjusted_.num_blocks());
  block_fixed_point_.assign(adjusted_.num_blocks(), 0);
  loop_(adjusted_.num_blocks(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t b = begin; b < end; ++b) {
      compute_block(b, options.temperature);
      const float* masses = masses_.data() + b * kMassBlock;
      const std::size_t size = std::min(kMassBlock, logits.size() - b * kMassBlock);
      if (!filters) {
        block_sums_[b] = kernels_->sum(masses, size);
      } else if (adds_fixed_point) {
        block_fixed_point_[b] = kernels_->fixed_point_sum(masses, size, bits);
      }
    }
  });
  if (!filters) {
    return Kept::kAll;
  }
  filter(options);
  return Kept::kFiltered;
}

Result<std::int32_t> Sampler::sample_with(std::span<const float> logits,
                                          const SamplingOptions& options,
                                          const TokenHistory& history, double uniform) {
  TIDEMILL_ASSIGN_OR_RETURN(const Kept kept, compute_masses(logits, options, history));
  switch (kept) {
    case Kept::kAll: return sample_by_mass(masses_, block_sums_, uniform);
    case Kept::kFiltered: return kept_.sample(logits.size(), uniform);
    default: return greedy_;
  }
}

Result<std::int32_t> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                     const TokenHistory& history, const SamplingKey& key) {
  const double uniform = keyed_uniform(key.seed, key.sample.value, key.position);
  Result<std::int32_t> token = sample_with(logits, options, history, uniform);
  if (!token.ok()) {
    return token.status().with_context("sample " + std::to_string(key.sample.value) +
                                       ", position " + std::to_string(key.position));
  }
  return token;
}

Result<std::int64_t> Sampler::distribution(std::span<const float> logits,
                                           const SamplingOptions& options,
                                           const TokenHistory& history,
                                           std::span<float> probabilities) {
  if (probabilities.size() != logits.size()) {
    return invalid_argument("probabilities and logits must have the same size");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const Kept kept, compute_masses(logits, options, history));
  const auto share_of = [](float mass, double total) {
    return static_cast<float>(static_cast<double>(mass) / total);
  };
  std::ranges::fill(probabilities, 0.0F);
  if (kept == Kept::kGreedy) {
    probabilities[static_cast<std::size_t>(greedy_)] = 1.0F;
    return 1;
  }
  if (kept == Kept::kFiltered) {
    const double total = kept_.sum(logits.size());
    for (const Candidate& one : kept_.tokens()) {
      probabilities[static_cast<std::size_t>(one.token)] = share_of(one.mass, total);
    }
    return std::ssize(kept_.tokens());
  }
  double total = 0.0;
  for (const double block : block_sums_) {
    total += block;
  }
  std::int64_t count = 0;
  for (std::size_t i = 0; i < masses_.size(); ++i) {
    probabilities[i] = share_of(masses_[i], total);
    count += adjusted_.at(i) > -std::numeric_limits<double>::infinity() ? 1 : 0;
  }
  return count;
}

}  // namespace tidemill::engines
