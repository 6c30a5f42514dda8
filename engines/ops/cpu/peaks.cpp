// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/peaks.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/tensor/aligned_bytes.hpp"
#include "engines/ops/cpu/processor.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kRounds = 200'000;
constexpr std::int64_t kReadBytes = std::int64_t{256} << 20U;

// Calls `body(worker)` on all workers at once. Returns how long the slowest one took.
template <class Body>
double seconds_of(Workers& workers, const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  workers.parallel_for(workers.size(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t worker = begin; worker < end; ++worker) {
      body(worker);
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<MachinePeaks> measure_peaks(Workers& workers, double seconds, IsaLevel isa) {
  TIDEMILL_ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::choose_kernels(isa));
  MachinePeaks peaks;
  const auto team = static_cast<std::size_t>(workers.size());
  std::vector<double> sums(team);
  AlignedBytes memory(kReadBytes);
  std::memset(memory.data(), 1, static_cast<std::size_t>(kReadBytes));
  const std::int64_t share = kReadBytes / workers.size() / 4096 * 4096;
  const auto flops = [&](double (*kernel)(std::int64_t)) {
    const double took = seconds_of(workers, [&](std::int64_t worker) {
      sums[static_cast<std::size_t>(worker)] = kernel(kRounds);
    });
    double sum = 0.0;
    for (const double one : sums) {
      sum += one;
    }
    return sum / took;
  };
  const auto start = std::chrono::steady_clock::now();
  do {
    peaks.f32_flops = std::max(peaks.f32_flops, flops(kernels->peak_f32));
    peaks.bf16_flops = std::max(peaks.bf16_flops, flops(kernels->peak_bf16));
    const double took = seconds_of(workers, [&](std::int64_t worker) {
      sums[static_cast<std::size_t>(worker)] =
          kernels->read_bytes(memory.data() + worker * share, share);
    });
    peaks.bytes_per_second =
        std::max(peaks.bytes_per_second, static_cast<double>(share * workers.size()) / took);
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
           seconds);
  return peaks;
}

}  // namespace tidemill::engines
