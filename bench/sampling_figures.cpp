// SPDX-License-Identifier: Apache-2.0
// The figures of sampling: tokens and their log-probabilities from logits in memory.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "bench/figure_spec.hpp"
#include "bench/times.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"

namespace tidemill::bench {
namespace {

using engines::DeviceBlock;
using engines::Matrix;
using engines::Ops;

constexpr double kSeconds = 0.3;

enum class Filter : std::uint8_t { kNone, kTopP };

// Logits whose probabilities fall with a power of the rank, as those of language models do
// (Zipf's law), in a random order.
std::vector<float> ranked_logits(std::int64_t rows, std::int64_t vocabulary) {
  std::vector<float> logits(static_cast<std::size_t>(rows * vocabulary));
  RandomStream random(1);
  for (float& logit : logits) {
    const double rank = 1.0 + random.uniform() * static_cast<double>(vocabulary);
    logit = static_cast<float>(-1.5 * std::log(rank));
  }
  return logits;
}

Result<double> rows_per_second(Ops& ops, std::int64_t rows, std::int64_t vocabulary,
                               Filter filter) {
  TIDEMILL_ASSIGN_OR_RETURN(const DeviceBlock block, ops.memory().allocate(rows * vocabulary * 4));
  const Matrix logits{block.address(), rows, vocabulary, vocabulary};
  ops.write(ranked_logits(rows, vocabulary), logits);
  engines::SamplingOptions options;
  options.top_p = filter == Filter::kTopP ? 0.95F : 1.0F;
  std::vector<engines::SampleRequest> requests;
  for (std::int64_t row = 0; row < rows; ++row) {
    requests.push_back({row, &options, {}, {1, SampleId{static_cast<std::uint64_t>(row)}, 0}});
  }
  TIDEMILL_RETURN_IF_ERROR(ops.sample(logits, requests).status());  // grows buffers
  std::int64_t sampled = 0;
  const auto start = std::chrono::steady_clock::now();
  while (elapsed_seconds(start) < kSeconds) {
    for (engines::SampleRequest& request : requests) {
      ++request.key.position;
    }
    TIDEMILL_RETURN_IF_ERROR(ops.sample(logits, requests).status());
    sampled += rows;
  }
  return static_cast<double>(sampled) / elapsed_seconds(start);
}

template <std::int64_t kRows, std::int64_t kVocabulary, Filter kFilter>
Result<double> sample(BenchModel& bench) {
  engines::Workers workers(bench.options().threads);
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, engines::make_cpu_ops(workers));
  return rows_per_second(*ops, kRows, kVocabulary, kFilter);
}

template <std::int64_t kVocabulary>
Result<double> read_limit(BenchModel& /*bench*/, const engines::MachinePeaks& peaks,
                          const FigureSpec& /*spec*/) {
  return peaks.bytes_per_second / static_cast<double>(kVocabulary * 4);
}

template <std::int64_t kRows, std::int64_t kVocabulary, Filter kFilter>
FigureSpec figure(const char* name) {
  return {name,
          {},
          "rows/s",
          "one read of the logits",
          sample<kRows, kVocabulary, kFilter>,
          read_limit<kVocabulary>,
          RunsIn::kThisProcessWithoutModel};
}

// The vocabularies of Llama 2 (without padding) and of Qwen3.
constexpr std::int64_t k32k = 32000;
constexpr std::int64_t k152k = 151936;

}  // namespace

std::vector<FigureSpec> sampling_figures() {
  constexpr auto kNone = Filter::kNone;
  constexpr auto kTopP = Filter::kTopP;
  return {
      figure<1, k32k, kNone>("sample_1_32k"),
      figure<16, k32k, kNone>("sample_16_32k"),
      figure<32, k32k, kNone>("sample_32_32k"),
      figure<1, k152k, kNone>("sample_1_152k"),
      figure<16, k152k, kNone>("sample_16_152k"),
      figure<32, k152k, kNone>("sample_32_152k"),
      figure<1, k32k, kTopP>("sample_top_p_1_32k"),
      figure<16, k32k, kTopP>("sample_top_p_16_32k"),
      figure<32, k32k, kTopP>("sample_top_p_32_32k"),
      figure<1, k152k, kTopP>("sample_top_p_1_152k"),
      figure<16, k152k, kTopP>("sample_top_p_16_152k"),
      figure<32, k152k, kTopP>("sample_top_p_32_152k"),
  };
}

}  // namespace tidemill::bench
