// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_arrivals.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/random.hpp"

namespace tidemill::bench {
namespace {

constexpr std::int64_t kLongest = 4;  // times the median

// The generator that the distributions of the standard library draw from.
class RandomBits {
public:
  using result_type = std::uint64_t;
  explicit RandomBits(std::uint64_t seed) : stream_(seed) {}
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()() { return stream_.bits(); }

private:
  RandomStream stream_;
};

std::int64_t length_near(std::int64_t median, double sigma, RandomBits& bits) {
  if (sigma == 0.0) {
    return median;
  }
  std::lognormal_distribution<double> factor(0.0, sigma);
  const double length = std::round(static_cast<double>(median) * factor(bits));
  return std::clamp(static_cast<std::int64_t>(length), std::int64_t{1}, kLongest * median);
}

}  // namespace

std::vector<PlannedRequest> plan_arrivals(const ArrivalOptions& options) {
  RandomBits bits(options.seed);
  const double shape = 1.0 / (options.cv * options.cv);
  std::gamma_distribution<double> gap(shape, 1.0 / (options.rate * shape));
  std::vector<PlannedRequest> requests;
  for (double now = gap(bits); now < options.seconds; now += gap(bits)) {
    PlannedRequest request;
    request.start_s = now;
    request.prompt_tokens = length_near(options.prompt_tokens, options.length_sigma, bits);
    request.new_tokens = length_near(options.new_tokens, options.length_sigma, bits);
    requests.push_back(request);
  }
  return requests;
}

}  // namespace tidemill::bench
