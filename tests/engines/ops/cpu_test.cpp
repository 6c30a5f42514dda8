// SPDX-License-Identifier: Apache-2.0
// How the CPU backend is put together, what it says of itself, and its exponential.
#include <cmath>
#include <string>

#include "engines/ops/cpu/onednn_matmul.hpp"
#include "engines/ops/cpu/processor.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

using ::testing::Test;

TEST(CpuOps, SaysWhatItUsesAndWhy) {
  Workers workers(1);
  const cpu::ProcessorFeatures features = cpu::processor_features();
  const std::string text(make_cpu_ops(workers).value()->description());
  std::cout << text << '\n';
  EXPECT_EQ(text.starts_with("cpu ("), true) << text;
  if (!features.avx512) {
    const std::string isa = features.avx2_fma ? "AVX2" : "no FMA";
    EXPECT_EQ(text, "cpu (" + isa + "; built-in matrix kernels, oneDNN needs AVX-512)");
  } else {
    EXPECT_NE(text.find("AVX-512"), std::string::npos) << text;
  }
  const std::string forced(
      make_cpu_ops(workers, {.matmul = MatmulChoice::kOneDnn}).value()->description());
  EXPECT_NE(forced.find("as chosen, rows not proven independent"), std::string::npos) << forced;
}

TEST(CpuOps, RefusesKernelsTheProcessorLacks) {
  Workers workers(1);
  const cpu::ProcessorFeatures features = cpu::processor_features();
  EXPECT_EQ(make_cpu_ops(workers, {.kernels = KernelChoice::kAvx512}).ok(), features.avx512);
  EXPECT_EQ(make_cpu_ops(workers, {.kernels = KernelChoice::kAvx2}).ok(), features.avx2_fma);
  EXPECT_TRUE(make_cpu_ops(workers, {.kernels = KernelChoice::kBaseline}).ok());
}

// Where a weight passes oneDNN's own trial, its rows are independent whatever the processor.
TEST(OneDnnMatmul, ProvenShapesAreRowIndependent) {
  Workers workers(2);
  cpu::OneDnnMatmul onednn(workers, {.f32 = true, .bf16 = true, .only_proven = true});
  int taken = 0;
  int left = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const bool trusted = onednn.self_check(dtype);
    std::cout << dtype_name(dtype) << " self-check " << (trusted ? "passed" : "failed");
    for (const auto& [in, out] :
         {std::pair<std::int64_t, std::int64_t>{128, 128}, {128, 344}, {200, 600}, {96, 65}}) {
      const Rows w = Rows::random(out, in, 1);
      const Rows x = Rows::random(300, in, 2);
      const auto weight = onednn.pack(f32_weight(w), dtype, cpu::OneDnnMatmul::Side::kTransposed);
      std::cout << ", " << in << " x " << out << (weight ? " taken" : " left");
      ++(weight ? taken : left);
      if (weight == nullptr) {
        continue;
      }
      EXPECT_GE(weight->size_bytes(), in * out * static_cast<std::int64_t>(dtype_bytes(dtype)));
      Rows whole(300, out);
      onednn.multiply(x.view(), *weight, nullptr, Store::kOverwrite, whole.view());
      for (const std::int64_t count : {1, 2, 3, 7, 20, 64, 100, 129, 299}) {
        for (const std::int64_t first : {std::int64_t{0}, 300 - count}) {
          Rows some(count, out, 1);
          onednn.multiply(x.view().slice_rows(first, count), *weight, nullptr, Store::kOverwrite,
                          some.view());
          for (std::int64_t t = 0; t < count; ++t) {
            ASSERT_TRUE(same_bits(some, t, whole, first + t)) << count << " rows from " << first;
          }
        }
      }
    }
    std::cout << '\n';
  }
  EXPECT_EQ(taken + left, 8);
}

TEST(OneDnnMatmul, SmallWeightsAndUntrustedTypesAreLeft) {
  Workers workers(1);
  cpu::OneDnnMatmul onednn(workers, {.f32 = true, .bf16 = false, .only_proven = true});
  const Rows small = Rows::random(16, 512, 1);
  const Rows large = Rows::random(128, 128, 1);
  EXPECT_EQ(onednn.pack(f32_weight(small), DType::kF32, cpu::OneDnnMatmul::Side::kTransposed),
            nullptr);
  EXPECT_EQ(onednn.pack(f32_weight(large), DType::kBF16, cpu::OneDnnMatmul::Side::kPlain), nullptr);
}

// e^x shows through silu: with up = 1, out = g / (1 + e^-g).
TEST(CpuOps, SigmoidsAreWithinAFewUnitsEverywhere) {
  Workers workers(1);
  for (const Backend& backend : backends()) {
    const std::unique_ptr<Ops> ops = backend.make(workers).value();
    constexpr std::int64_t kCount = 200001;
    Rows gate(1, kCount);
    Rows up(1, kCount);
    Rows out(1, kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      gate.at(0, i) = static_cast<float>(static_cast<double>(i) * 1.6e-3 - 160.0);
      up.at(0, i) = 1.0F;
    }
    ops->swiglu(gate.view(), up.view(), out.view());
    double worst = 0.0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double g = gate.at(0, i);
      const double expected = g / (1.0 + std::exp(-g));
      // Beyond e^88 results fade into what float cannot hold.
      const double scale = std::max(std::abs(expected), 1e-29);
      worst = std::max(worst, std::abs(double{out.at(0, i)} - expected) / scale);
    }
    EXPECT_LE(worst, 4 * 6e-8) << backend.name;
  }
}

TEST(CpuOps, NotANumberStaysVisible) {
  Workers workers(1);
  for (const Backend& backend : backends()) {
    const std::unique_ptr<Ops> ops = backend.make(workers).value();
    Rows logits = Rows::random(2, 40, 1);
    logits.at(0, 17) = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::int32_t> targets = {3, 3};
    Rows logprobs(1, 2);
    ops->log_softmax_gather(logits.view(), targets, 1.0F, logprobs.span(), {});
    EXPECT_TRUE(std::isnan(logprobs.at(0, 0))) << backend.name;
    EXPECT_FALSE(std::isnan(logprobs.at(0, 1))) << backend.name;
  }
}

}  // namespace
}  // namespace tidemill::engines::ops_test
