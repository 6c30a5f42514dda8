// SPDX-License-Identifier: Apache-2.0
// Speed of the CPU backend's operations, next to the multiply-add peak of the same minute.
//
// Counters: GFLOP/s, and `of_peak`, the fraction of what the same number of workers reach in a loop
// of independent multiply-adds.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engines/ops/cpu/processor.hpp"
#include "tests/engines/ops/cache.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

#if defined(__x86_64__)
// Sixteen independent chains: more than latency times throughput of any processor.
__attribute__((target("avx2,fma"))) double fma_flops_avx2(std::int64_t rounds) {
  __m256 sums[12];
  for (__m256& sum : sums) {
    sum = _mm256_set1_ps(1.0F);
  }
  const __m256 a = _mm256_set1_ps(0.999F);
  const __m256 b = _mm256_set1_ps(0.001F);
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(sum, a, b);
    }
  }
  for (__m256& sum : sums) {
    benchmark::DoNotOptimize(sum);
  }
  return static_cast<double>(rounds) * 12 * 16;
}

__attribute__((target("avx512f"))) double fma_flops_avx512(std::int64_t rounds) {
  __m512 sums[12];
  for (__m512& sum : sums) {
    sum = _mm512_set1_ps(1.0F);
  }
  const __m512 a = _mm512_set1_ps(0.999F);
  const __m512 b = _mm512_set1_ps(0.001F);
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(sum, a, b);
    }
  }
  for (__m512& sum : sums) {
    benchmark::DoNotOptimize(sum);
  }
  return static_cast<double>(rounds) * 12 * 32;
}

double fma_flops(std::int64_t rounds) {
  const cpu::ProcessorFeatures features = cpu::processor_features();
  return features.avx512     ? fma_flops_avx512(rounds)
         : features.avx2_fma ? fma_flops_avx2(rounds)
                             : 0.0;
}
#else
double fma_flops(std::int64_t /*rounds*/) {
  return 0.0;
}
#endif

// Multiply-add operations per second that `count` workers reach together; the best of ten tries.
double peak(int count) {
  Workers workers(count);
  double best = 0.0;
  for (int i = 0; i < 10; ++i) {
    std::vector<double> flops(static_cast<std::size_t>(count));
    const auto start = std::chrono::steady_clock::now();
    workers.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        flops[static_cast<std::size_t>(part)] = fma_flops(2000000);
      }
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    double sum = 0.0;
    for (const double value : flops) {
      sum += value;
    }
    best = std::max(best, sum / seconds.count());
  }
  return best;
}

void report(benchmark::State& state, double flops, double peak_flops) {
  const double done = flops * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(done / 1e9, benchmark::Counter::kIsRate);
  state.counters["of_peak"] = benchmark::Counter(done / peak_flops, benchmark::Counter::kIsRate);
}

enum class Product { kForward, kBackwardInput, kBackwardWeight };

struct ProductCase {
  Product product;
  DType dtype;
  std::int64_t rows;
  std::int64_t in;
  std::int64_t out;
  int workers;
};

void run_product(benchmark::State& state, const ProductCase& in, double peak_flops) {
  Workers workers(in.workers);
  const std::unique_ptr<Ops> ops = make_cpu_ops(workers).value();
  const Rows w = Rows::random(in.out, in.in, 1);
  const Rows x = Rows::random(in.rows, in.in, 2);
  const Rows dy = Rows::random(in.rows, in.out, 3);
  Rows y(in.rows, in.out);
  Rows dx(in.rows, in.in);
  Rows dw(in.out, in.in);
  const auto weight =
      ops->prepare_weight(f32_weight(w), in.dtype, WeightUse::kForwardAndBackward).value();
  for (auto _ : state) {
    switch (in.product) {
      case Product::kForward:
        ops->linear(x.view(), *weight, {}, Store::kOverwrite, y.view());
        break;
      case Product::kBackwardInput:
        ops->linear_backward_input(dy.view(), *weight, Store::kOverwrite, dx.view());
        break;
      case Product::kBackwardWeight:
        ops->linear_backward_weight(dy.view(), x.view(), dw.view());
        break;
    }
  }
  report(state, 2.0 * static_cast<double>(in.rows * in.in * in.out), peak_flops);
}

struct AttentionCase {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  bool backward;
  int workers;
};

void run_attention(benchmark::State& state, const AttentionCase& in, double peak_flops) {
  Workers workers(in.workers);
  const std::unique_ptr<Ops> ops = make_cpu_ops(workers).value();
  RandomStream random(1);
  const AttentionShape shape =
      attention_shape(in.heads, in.kv_heads, in.head_dim, 0, 16, DType::kF32);
  const Sequence sequence(shape, in.tokens, 1);
  TestCache cache(*ops, shape, std::span(&in.tokens, 1), random);
  const AttentionSegment segment{0, in.tokens, 0, cache.pages(0)};
  AttentionRows rows(shape, in.tokens);
  ops->kv_append(shape, std::span(&segment, 1), sequence.k.view(), sequence.v.view(),
                 cache.layer());
  ops->attention(shape, std::span(&segment, 1), sequence.q.view(), cache.layer(), rows.out.view(),
                 rows.lse.view());
  for (auto _ : state) {
    if (in.backward) {
      ops->attention_backward(shape, std::span(&segment, 1), sequence.q.view(), cache.layer(),
                              rows.out.view(), rows.lse.view(), sequence.dout.view(),
                              rows.dq.view(), rows.dk.view(), rows.dv.view());
    } else {
      ops->attention(shape, std::span(&segment, 1), sequence.q.view(), cache.layer(),
                     rows.out.view(), rows.lse.view());
    }
  }
  // Two products forward, five backward, over the half of the square that is seen.
  const double square = static_cast<double>(in.tokens * in.tokens) / 2;
  report(state, (in.backward ? 10.0 : 4.0) * square * static_cast<double>(in.heads * in.head_dim),
         peak_flops);
}

void run_log_softmax(benchmark::State& state, std::int64_t rows, std::int64_t vocabulary) {
  Workers workers(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(workers).value();
  const Rows logits = Rows::random(rows, vocabulary, 1);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 0);
  Rows logprobs(1, rows);
  Rows entropies(1, rows);
  for (auto _ : state) {
    ops->log_softmax_gather(logits.view(), targets, 1.0F, logprobs.span(), entropies.span());
  }
  state.SetItemsProcessed(state.iterations() * rows * vocabulary);
}

void add_products(const std::map<int, double>& peaks) {
  const std::pair<Product, const char*> products[] = {{Product::kForward, "linear"},
                                                      {Product::kBackwardInput, "dx"},
                                                      {Product::kBackwardWeight, "dw"}};
  for (const auto& [product, label] : products) {
    for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{128, 128},
                                  {128, 344},
                                  {344, 128},
                                  {512, 512},
                                  {2048, 2048}}) {
      for (const std::int64_t rows : {1, 4, 16, 64, 512, 2048}) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          if (product == Product::kBackwardWeight && dtype != DType::kF32) {
            continue;
          }
          for (const int workers : {1, 2}) {
            const ProductCase one{product, dtype, rows, in, out, workers};
            const std::string name = std::string(label) + "/" + std::string(dtype_name(dtype)) +
                                     "/" + std::to_string(rows) + "x" + std::to_string(in) + "x" +
                                     std::to_string(out) + "/workers:" + std::to_string(workers);
            benchmark::RegisterBenchmark(name.c_str(), run_product, one, peaks.at(workers))
                ->UseRealTime();
          }
        }
      }
    }
  }
}

void add_others(const std::map<int, double>& peaks) {
  for (const bool backward : {false, true}) {
    for (const AttentionCase& shape : {AttentionCase{64, 4, 4, 32, backward, 2},
                                       {512, 4, 4, 32, backward, 2},
                                       {512, 16, 4, 64, backward, 2},
                                       {2048, 16, 4, 64, backward, 2}}) {
      const std::string name = std::string(backward ? "attention_backward/" : "attention/") +
                               std::to_string(shape.tokens) + "x" + std::to_string(shape.heads) +
                               "x" + std::to_string(shape.head_dim);
      benchmark::RegisterBenchmark(name.c_str(), run_attention, shape, peaks.at(shape.workers))
          ->UseRealTime();
    }
  }
  benchmark::RegisterBenchmark("log_softmax/64x32000", run_log_softmax, 64, 32000)->UseRealTime();
  benchmark::RegisterBenchmark("log_softmax/2048x32", run_log_softmax, 2048, 32)->UseRealTime();
}

}  // namespace
}  // namespace tidemill::engines::ops_test

int main(int argc, char** argv) {
  using namespace tidemill::engines;
  benchmark::Initialize(&argc, argv);
  Workers workers(1);
  std::map<int, double> peaks;
  for (const int count : {1, 2}) {
    peaks[count] = ops_test::peak(count);
    benchmark::AddCustomContext("FMA peak, workers:" + std::to_string(count),
                                std::to_string(peaks[count] / 1e9) + " GFLOP/s");
  }
  benchmark::AddCustomContext("backend", std::string(make_cpu_ops(workers).value()->description()));
  ops_test::add_products(peaks);
  ops_test::add_others(peaks);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
