// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/sampler.hpp"

#include <algorithm>
#include <array>
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

// If more than one in so many tokens may be kept, they are not listed: the masses of the others are
// set to 0.
constexpr std::size_t kManyTokens = 16;
// One in so many tokens is used to estimate the threshold of top-p.
constexpr std::size_t kEstimateStep = 16;

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
    : kernels_(&kernels), loop_(std::move(loop)), row_(kernels) {}

Largest Sampler::find_largest() {
  block_largest_.resize(adjusted_.num_blocks());
  loop_(adjusted_.num_blocks(), [this](std::size_t begin, std::size_t end) {
    std::array<float, kMassBlock> copy;
    for (std::size_t b = begin; b < end; ++b) {
      if (adjusted_.excludes(b)) {
        block_largest_[b] = {-std::numeric_limits<double>::infinity(), false};
        continue;
      }
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
  if (adjusted_.excludes(block)) {
    std::ranges::fill(row_.block(block), 0.0F);
    return;
  }
  std::array<float, kMassBlock> copy;
  const std::span<const float> logits = adjusted_.block(block, copy);
  kernels_->compute_masses(logits.data(), logits.size(), largest_, temperature,
                           row_.block(block).data());
  adjusted_.each_changed(block, [&](const AdjustedLogits::Changed& changed) {
    row_.at(static_cast<std::size_t>(changed.token)) =
        mass_of(changed.logit, largest_, temperature);
  });
}

// Bounds the masses of each block, for searches in the row.
void Sampler::bound_blocks(float temperature) {
  for (std::size_t b = 0; b < row_.num_blocks(); ++b) {
    float bound = mass_of(block_largest_[b].value, largest_, temperature);
    adjusted_.each_changed(b, [&](const AdjustedLogits::Changed& changed) {
      bound = std::max(bound, row_.at(static_cast<std::size_t>(changed.token)));
    });
    row_.set_bound(b, bound);
  }
}

// Collects, in token order, the tokens with masses in `range`. Returns false if there are more than
// `limit`; some are then missing.
bool Sampler::collect(const MassRange& range, std::size_t limit) {
  kept_.clear();
  row_.each_in(range, [&](std::size_t token, float mass) {
    const double logit = adjusted_.at(token);
    if (logit > -std::numeric_limits<double>::infinity()) {
      kept_.add({logit, mass, static_cast<std::int32_t>(token)});
    }
    return kept_.tokens().size() <= limit;
  });
  return kept_.tokens().size() <= limit;
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
    return rounding_margin_below(mass_of(*kth, largest_, options.temperature));
  }
  histogram_.clear();
  for (const float mass : row_.masses()) {
    histogram_.add(mass, 1);
  }
  const auto wanted = static_cast<std::uint64_t>(options.top_k);
  return rounding_margin_below(histogram_.bucket_reaching(wanted).range.min);
}

// Narrows the range of the threshold to one bucket of the histogram.
void Sampler::narrow(std::uint64_t wanted, double share, Threshold& threshold) {
  const int bits = fixed_point_bits(row_.size());
  MassRange& range = threshold.range;
  // An estimate from some of the tokens leaves few of the others to add to the histogram. It is
  // checked, because it may be wrong.
  histogram_.clear();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < row_.size(); i += kEstimateStep) {
    const float mass = row_.masses()[i];
    const std::uint64_t amount = fixed_point_mass(mass, bits);
    total += amount;
    histogram_.add(mass, amount);
  }
  const std::size_t used = row_.size() / kEstimateStep + 1;
  const double error = 1.5 / std::sqrt(static_cast<double>(used));
  const auto estimated = [&](double part) {
    const double sum = std::clamp(part, 0.0, 1.0) * static_cast<double>(total);
    return histogram_.bucket_reaching(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(sum)))
        .range;
  };
  const float min = estimated(share + error).min;
  if (min > range.min && row_.sum_at_least(min, bits) >= wanted) {
    range.min = min;
  }
  const float max = estimated(share - error).max;
  if (max < range.max && max >= range.min) {
    const std::uint64_t above = row_.sum_at_least(std::nextafter(max, 2.0F), bits);
    if (above < wanted) {
      threshold.above = above;
      range.max = max;
    }
  }
  histogram_.clear();
  row_.each_in(range, [&](std::size_t /*token*/, float mass) {
    histogram_.add(mass, fixed_point_mass(mass, bits));
    return true;
  });
  const MassHistogram::Bucket bucket = histogram_.bucket_reaching(wanted - threshold.above);
  threshold.above += bucket.above;
  range.min = std::max(range.min, bucket.range.min);
  range.max = std::min(range.max, bucket.range.max);
}

// Sets the masses of the tokens to 0 that top-p and min-p do not keep. Tokens that top-p keeps have
// a mass above 0, since the threshold has a fixed-point mass above 0.
void Sampler::drop_tokens(std::uint64_t wanted, const Threshold& threshold, float min_p) {
  const int bits = fixed_point_bits(row_.size());
  const MassRange undecided{rounding_margin_below(threshold.range.min),
                            rounding_margin_above(threshold.range.max)};
  collect(undecided, row_.size());
  std::uint64_t above = threshold.above;  // of the masses above `undecided`
  for (const Candidate& one : kept_.tokens()) {
    row_.at(static_cast<std::size_t>(one.token)) = 0.0F;
    above -= one.mass > threshold.range.max ? fixed_point_mass(one.mass, bits) : 0;
  }
  kept_.keep_top_p(wanted - above, bits);
  for (const Candidate& one : kept_.tokens()) {
    row_.at(static_cast<std::size_t>(one.token)) = one.mass;
  }
  drop_below(std::max(undecided.min, min_p));
}

// Sets the masses that are less than `min` to 0 and adds those that are left.
void Sampler::drop_below(float min) {
  loop_(row_.num_blocks(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t b = begin; b < end; ++b) {
      block_sums_[b] = row_.drop_below(b, min);
    }
  });
}

Sampler::Kept Sampler::filter_top_p(const SamplingOptions& options) {
  std::uint64_t total = 0;
  for (const std::uint64_t mass : block_fixed_point_) {
    total += mass;
  }
  const std::uint64_t wanted = top_p_target(options.top_p, total);
  const int bits = fixed_point_bits(row_.size());
  bound_blocks(options.temperature);
  Threshold threshold;
  // Few tokens of most distributions have more than the first bound. Each bound is a sixteenth of
  // the one before, until it is less than half of the smallest fixed-point mass.
  for (int exponent = -6; exponent > -60; exponent -= 4) {
    const float min = std::ldexp(1.0F, exponent);
    if (!collect({rounding_margin_below(min)}, row_.size() / kManyTokens)) {
      break;
    }
    const std::uint64_t sum = kept_.fixed_point_sum(bits, min);
    if (sum >= wanted) {
      kept_.keep_top_p(wanted, bits);
      if (options.min_p > 0.0F) {
        kept_.keep_min_p(options.min_p);
      }
      return Kept::kListed;
    }
    threshold = {{0.0F, std::nextafter(min, 0.0F)}, sum};
  }
  narrow(wanted, options.top_p, threshold);
  drop_tokens(wanted, threshold, options.min_p);
  return Kept::kWithMass;
}

Sampler::Kept Sampler::filter(const SamplingOptions& options) {
  if (!selects(options, row_.size())) {
    if (options.top_p < 1.0F) {
      return filter_top_p(options);
    }
    drop_below(options.min_p);
    return Kept::kWithMass;
  }
  bound_blocks(options.temperature);
  collect({least_top_k_mass(options)}, row_.size());
  kept_.keep_top_k(options.top_k);
  if (options.top_p < 1.0F) {
    const int bits = fixed_point_bits(row_.size());
    kept_.keep_top_p(top_p_target(options.top_p, kept_.fixed_point_sum(bits, 0.0F)), bits);
  }
  if (options.min_p > 0.0F) {
    kept_.keep_min_p(options.min_p);
  }
  return Kept::kListed;
}

Result<Sampler::Kept> Sampler::compute_masses(std::span<const float> logits,
                                              const SamplingOptions& options,
                                              const TokenHistory& history, TokenMask mask) {
  TIDEMILL_RETURN_IF_ERROR(adjusted_.apply(logits, options, history, mask));
  const Largest largest = find_largest();
  TIDEMILL_RETURN_IF_ERROR(check_largest(largest));
  largest_ = largest.value;
  if (options.temperature == 0.0F) {
    greedy_ = first_equal(largest_);
    return Kept::kGreedy;
  }
  const bool filters =
      selects(options, logits.size()) || options.top_p < 1.0F || options.min_p > 0.0F;
  const bool adds_fixed_point = options.top_p < 1.0F && !selects(options, logits.size());
  const int bits = fixed_point_bits(logits.size());
  row_.resize(logits.size());
  block_sums_.resize(row_.num_blocks());
  block_fixed_point_.assign(row_.num_blocks(), 0);
  loop_(row_.num_blocks(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t b = begin; b < end; ++b) {
      compute_block(b, options.temperature);
      const std::span<const float> masses = row_.block(b);
      if (!filters) {
        block_sums_[b] = kernels_->sum(masses.data(), masses.size());
      } else if (adds_fixed_point) {
        block_fixed_point_[b] = kernels_->fixed_point_sum(masses.data(), masses.size(), bits, 0.0F);
      }
    }
  });
  return filters ? filter(options) : Kept::kAll;
}

Result<std::int32_t> Sampler::sample_with(std::span<const float> logits,
                                          const SamplingOptions& options,
                                          const TokenHistory& history, double uniform,
                                          TokenMask mask) {
  TIDEMILL_ASSIGN_OR_RETURN(const Kept kept, compute_masses(logits, options, history, mask));
  switch (kept) {
    case Kept::kAll:
    case Kept::kWithMass: return sample_by_mass(row_.masses(), block_sums_, uniform);
    case Kept::kListed: return kept_.sample(logits.size(), uniform);
    default: return greedy_;
  }
}

Result<std::int32_t> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                     const TokenHistory& history, const SamplingKey& key,
                                     TokenMask mask) {
  const double uniform = keyed_uniform(key.seed, key.sample.value, key.position);
  Result<std::int32_t> token = sample_with(logits, options, history, uniform, mask);
  if (!token.ok()) {
    return token.status().with_context("sample " + std::to_string(key.sample.value) +
                                       ", position " + std::to_string(key.position));
  }
  return token;
}

Result<std::int64_t> Sampler::distribution(std::span<const float> logits,
                                           const SamplingOptions& options,
                                           const TokenHistory& history,
                                           std::span<float> probabilities, TokenMask mask) {
  if (probabilities.size() != logits.size()) {
    return invalid_argument("probabilities and logits must have the same size");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const Kept kept, compute_masses(logits, options, history, mask));
  const auto share_of = [](float mass, double total) {
    return static_cast<float>(static_cast<double>(mass) / total);
  };
  std::ranges::fill(probabilities, 0.0F);
  if (kept == Kept::kGreedy) {
    probabilities[static_cast<std::size_t>(greedy_)] = 1.0F;
    return 1;
  }
  if (kept == Kept::kListed) {
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
  for (std::size_t i = 0; i < row_.size(); ++i) {
    const float mass = row_.masses()[i];
    probabilities[i] = share_of(mass, total);
    const bool is_kept = kept == Kept::kWithMass
                             ? mass > 0.0F
                             : adjusted_.at(i) > -std::numeric_limits<double>::infinity();
    count += is_kept ? 1 : 0;
  }
  return count;
}

}  // namespace tidemill::engines
