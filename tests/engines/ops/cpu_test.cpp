// SPDX-License-Identifier: Apache-2.0
// Tests how the CPU backend chooses kernels, prepares weights and describes itself, and tests its
// exponential function.
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "engines/ops/cpu/panels.hpp"
#include "engines/ops/cpu/processor.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

// Sets the environment variable that names the level of `kAuto`, and restores it on destruction.
class IsaVariable {
public:
  explicit IsaVariable(const char* value) {
    if (const char* old = std::getenv(kName)) {
      old_ = old;
    }
    setenv(kName, value, 1);
  }
  IsaVariable(const IsaVariable&) = delete;
  IsaVariable& operator=(const IsaVariable&) = delete;
  ~IsaVariable() { old_.has_value() ? setenv(kName, old_->c_str(), 1) : unsetenv(kName); }

private:
  static constexpr const char* kName = "TIDEMILL_ISA";
  std::optional<std::string> old_;
};

std::string description(IsaLevel isa) {
  Workers workers(1);
  auto ops = make_cpu_host_ops(workers, {isa});
  return ops.ok() ? std::string(ops.value()->description()) : ops.status().message();
}

TEST(CpuOps, SelectsTheBestLevelOfTheProcessor) {
  const IsaVariable unset("");
  const cpu::ProcessorFeatures has = cpu::processor_features();
  EXPECT_EQ(description(IsaLevel::kAuto), has.amx           ? "cpu (AMX)"
                                          : has.avx512_bf16 ? "cpu (AVX-512 BF16)"
                                          : has.avx512      ? "cpu (AVX-512)"
                                          : has.avx2_fma    ? "cpu (AVX2)"
                                                            : "cpu (no FMA)");
}

TEST(CpuOps, RejectsLevelsThatTheProcessorLacks) {
  Workers workers(1);
  const cpu::ProcessorFeatures has = cpu::processor_features();
  EXPECT_EQ(make_cpu_host_ops(workers, {IsaLevel::kAmx}).ok(), has.amx);
  EXPECT_EQ(make_cpu_host_ops(workers, {IsaLevel::kAvx512Bf16}).ok(), has.avx512_bf16);
  EXPECT_EQ(make_cpu_host_ops(workers, {IsaLevel::kAvx512}).ok(), has.avx512);
  EXPECT_EQ(make_cpu_host_ops(workers, {IsaLevel::kAvx2}).ok(), has.avx2_fma);
  EXPECT_TRUE(make_cpu_host_ops(workers, {IsaLevel::kBaseline}).ok());
}

TEST(CpuOps, TheEnvironmentSelectsTheLevel) {
  {
    const IsaVariable baseline("baseline");
    EXPECT_EQ(description(IsaLevel::kAuto), "cpu (no FMA)");
  }
  const IsaVariable wrong("avx3");
  EXPECT_EQ(description(IsaLevel::kAuto),
            "TIDEMILL_ISA: \"avx3\" is none of auto, baseline, avx2, avx512, avx512_bf16, amx");
  EXPECT_EQ(description(IsaLevel::kBaseline), "cpu (no FMA)");
}

TEST(CpuOps, OneCopyOfAWeightIsEnoughForBothDirections) {
  Workers workers(1);
  const Rows w = Rows::random(48, 64, 1);
  const std::unique_ptr<Ops> ops = make_cpu_host_ops(workers).value();
  for (const auto& [dtype, bytes] : {std::pair{DType::kF32, 4}, std::pair{DType::kBF16, 2}}) {
    const auto weight =
        ops->prepare_weight(f32_weight(w), dtype, WeightUse::kForwardAndBackward).value();
    EXPECT_EQ(weight->size_bytes(), 48 * 64 * bytes);
  }
}

TEST(CpuOps, ReplacingAWeightReusesItsMemory) {
  Workers workers(1);
  const std::unique_ptr<Ops> ops = make_cpu_host_ops(workers).value();
  const auto use = WeightUse::kForwardAndBackward;
  const Rows w = Rows::random(48, 64, 1);
  const Rows other = Rows::random(48, 96, 2);
  const auto address = [](const PreparedWeight& weight) {
    return dynamic_cast<const cpu::PanelWeight&>(weight).data();
  };
  auto weight = ops->prepare_weight(f32_weight(w), DType::kF32, use).value();
  const auto neighbor = ops->prepare_weight(f32_weight(w), DType::kF32, use).value();
  const std::byte* before = address(*weight);
  weight = ops->replace_weight(std::move(weight), f32_weight(w), DType::kF32, use).value();
  EXPECT_EQ(address(*weight), before);
  weight = ops->replace_weight(std::move(weight), f32_weight(other), DType::kF32, use).value();
  EXPECT_NE(address(*weight), before) << "the new weight is larger";
}

// Tests e^x through silu: with up = 1, out = g / (1 + e^-g).
TEST(CpuOps, SigmoidsAreAccurateToAFewUnitsEverywhere) {
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
      // For g below -88, results underflow the range of float.
      const double scale = std::max(std::abs(expected), 1e-29);
      worst = std::max(worst, std::abs(double{out.at(0, i)} - expected) / scale);
    }
    EXPECT_LE(worst, 4 * 6e-8) << backend.name;
  }
}

TEST(CpuOps, NaNPropagates) {
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
