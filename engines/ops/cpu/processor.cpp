// SPDX-License-Identifier: Apache-2.0
// Run-time choice of the instruction set.
#include "engines/ops/cpu/processor.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tidemill::engines::cpu {

namespace {

#if defined(__x86_64__)

// Returns whether the processor has tile registers and multiplies bfloat16 in them.
bool has_tiles() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kNeeded = 1U << 24U | 1U << 22U;  // AMX-TILE, AMX-BF16
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kNeeded) == kNeeded;
}

// Asks Linux to let this process use the data of tile registers, which enlarge the frames of
// signals. Returns whether it may. See Documentation/arch/x86/xstate.rst of the kernel.
bool request_tiles() noexcept {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

}  // namespace

ProcessorFeatures processor_features() noexcept {
  ProcessorFeatures features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  features.avx2_fma = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  features.avx512 = features.avx2_fma && __builtin_cpu_supports("avx512f") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512dq") != 0 &&
                    __builtin_cpu_supports("avx512vl") != 0;
  features.avx512_bf16 = features.avx512 && __builtin_cpu_supports("avx512bf16") != 0 &&
                         __builtin_cpu_supports("avx512vnni") != 0;
  static const bool tiles = has_tiles() && request_tiles();
  features.amx = features.avx512_bf16 && tiles;
#endif
  return features;
}

namespace {

constexpr const char* kIsaVariable = "TIDEMILL_ISA";

struct Level {
  IsaLevel level;
  std::string_view name;
  bool present;
  const KernelTable* (*kernels)();
};

// Those that this build contains, best first.
std::vector<Level> levels() {
  [[maybe_unused]] const ProcessorFeatures has = processor_features();
  std::vector<Level> levels;
#if defined(TIDEMILL_AVX512_KERNELS)
  levels.push_back({IsaLevel::kAmx, "AMX", has.amx, [] { return &isa_amx::kernels(); }});
  levels.push_back({IsaLevel::kAvx512Bf16, "AVX-512 BF16", has.avx512_bf16,
                    [] { return &isa_avx512_bf16::kernels(); }});
  levels.push_back(
      {IsaLevel::kAvx512, "AVX-512", has.avx512, [] { return &isa_avx512::kernels(); }});
#endif
#if defined(TIDEMILL_X86_KERNELS)
  levels.push_back(
      {IsaLevel::kAvx2, "AVX2 with FMA", has.avx2_fma, [] { return &isa_avx2::kernels(); }});
#endif
  levels.push_back({IsaLevel::kBaseline, "nothing", true, [] { return &isa_baseline::kernels(); }});
  return levels;
}

// Replaces `kAuto` with the level that the environment names, if it names one.
Result<IsaLevel> chosen_level(IsaLevel level) {
  // Nothing in this project changes the environment.
  const char* forced = std::getenv(kIsaVariable);  // NOLINT(concurrency-mt-unsafe)
  if (level != IsaLevel::kAuto || forced == nullptr || *forced == '\0') {
    return level;
  }
  if (const auto named = isa_level(forced)) {
    return *named;
  }
  return invalid_argument(std::string(kIsaVariable) + ": \"" + forced +
                          "\" is none of auto, baseline, avx2, avx512, avx512_bf16, amx");
}

}  // namespace

Result<const KernelTable*> choose_kernels(IsaLevel level) {
  TIDEMILL_ASSIGN_OR_RETURN(const IsaLevel chosen, chosen_level(level));
  for (const Level& one : levels()) {
    if (chosen == IsaLevel::kAuto ? one.present : one.level == chosen) {
      if (!one.present) {
        return Status(Errc::kUnimplemented, "this processor has no " + std::string(one.name));
      }
      return one.kernels();
    }
  }
  return Status(Errc::kUnimplemented,
                "this build has no " + std::string(isa_level_name(chosen)) + " kernels");
}

}  // namespace tidemill::engines::cpu

namespace tidemill::engines {
namespace {

constexpr std::pair<IsaLevel, std::string_view> kNames[] = {{IsaLevel::kAuto, "auto"},
                                                            {IsaLevel::kBaseline, "baseline"},
                                                            {IsaLevel::kAvx2, "avx2"},
                                                            {IsaLevel::kAvx512, "avx512"},
                                                            {IsaLevel::kAvx512Bf16, "avx512_bf16"},
                                                            {IsaLevel::kAmx, "amx"}};

}  // namespace

std::string_view isa_level_name(IsaLevel level) noexcept {
  return std::ranges::find(kNames, level, &std::pair<IsaLevel, std::string_view>::first)->second;
}

std::optional<IsaLevel> isa_level(std::string_view name) noexcept {
  const auto* found =
      std::ranges::find(kNames, name, &std::pair<IsaLevel, std::string_view>::second);
  return found != std::end(kNames) ? std::optional(found->first) : std::nullopt;
}

}  // namespace tidemill::engines
