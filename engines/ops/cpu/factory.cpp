// SPDX-License-Identifier: Apache-2.0
// Puts the CPU backend together and says of what.
#include "engines/ops/cpu/factory.hpp"

#include <string>
#include <utility>

#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/onednn_matmul.hpp"
#include "engines/ops/cpu/processor.hpp"

namespace tidemill::engines {
namespace {

struct Products {
  std::unique_ptr<cpu::OneDnnMatmul> onednn;  // null: all products are built in
  std::string description;
};

// What oneDNN may be trusted with on this processor, proven by its self-check.
Products trusted_products(Workers& workers, const cpu::ProcessorFeatures& features) {
  if (!features.avx512) {
    return {nullptr, "built-in matrix kernels, oneDNN needs AVX-512"};
  }
  cpu::OneDnnPolicy policy{.f32 = true, .bf16 = features.avx512_bf16};
  cpu::OneDnnMatmul trial(workers, policy);
  policy.f32 = trial.self_check(DType::kF32);
  policy.bf16 = features.avx512_bf16 && trial.self_check(DType::kBF16);
  const std::string version = cpu::OneDnnMatmul::version();
  if (!policy.f32 && !policy.bf16) {
    return {nullptr, "built-in matrix kernels, " + version +
                         " failed its self-check: rows depend on their batch"};
  }
  std::string description = version + " for ";
  description += policy.f32 && policy.bf16 ? "f32 and bf16" : policy.f32 ? "f32" : "bf16";
  if (!policy.f32) {
    description += ", built-in kernels for f32: oneDNN failed its self-check";
  } else if (!policy.bf16) {
    description += features.avx512_bf16
                       ? ", built-in kernels for bf16: oneDNN failed its self-check"
                       : ", built-in kernels for bf16: oneDNN needs AVX-512 BF16";
  }
  return {std::make_unique<cpu::OneDnnMatmul>(workers, policy), std::move(description)};
}

Products choose_products(Workers& workers, MatmulChoice choice,
                         const cpu::ProcessorFeatures& features) {
  switch (choice) {
    case MatmulChoice::kBuiltin: return {nullptr, "built-in matrix kernels, as chosen"};
    case MatmulChoice::kOneDnn:
      return {std::make_unique<cpu::OneDnnMatmul>(
                  workers, cpu::OneDnnPolicy{.f32 = true, .bf16 = true, .only_proven = false}),
              cpu::OneDnnMatmul::version() + " as chosen, rows not proven independent"};
    case MatmulChoice::kAuto: break;
  }
  return trusted_products(workers, features);
}

}  // namespace

Result<std::unique_ptr<Ops>> make_cpu_ops(Workers& workers, const CpuOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::choose_kernels(options.kernels));
  const cpu::ProcessorFeatures features = cpu::processor_features();
  Products products = choose_products(workers, options.matmul, features);
  std::string description = "cpu (" + std::string(kernels->isa);
  if (features.avx512_bf16 && kernels->outer_rows == 12) {
    description += " BF16";
  }
  description += "; " + products.description + ")";
  return std::unique_ptr<Ops>(std::make_unique<cpu::CpuOps>(
      workers, *kernels, std::move(products.onednn), std::move(description)));
}

}  // namespace tidemill::engines
