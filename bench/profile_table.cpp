// SPDX-License-Identifier: Apache-2.0
#include "bench/profile_table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

namespace tidemill::bench {
namespace {

template <class... Values>
std::string line(const char* format, const Values&... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace

std::string profile_table(const StepProfile& profile) {
  if (profile.ops.records.empty()) {
    return "  no profile: measured in a separate process\n";
  }
  using Entry = std::pair<std::string, engines::OpRecord>;
  std::vector<Entry> entries(profile.ops.records.begin(), profile.ops.records.end());
  std::ranges::sort(entries, std::ranges::greater{},
                    [](const Entry& entry) { return entry.second.seconds; });
  std::string table =
      line("  peaks: f32 %.0f, bf16 %.0f GFLOP/s, read %.1f GB/s\n", profile.peaks.f32_flops / 1e9,
           profile.peaks.bf16_flops / 1e9, profile.peaks.bytes_per_second / 1e9);
  table += line("  %-26s %7s %9s %6s %9s %8s %7s\n", "operation", "calls", "ms", "share", "GFLOP/s",
                "GB/s", "of peak");
  for (const auto& [name, record] : entries) {
    const double flops = record.flops / record.seconds;
    const double peak =
        record.operands == DType::kF32 ? profile.peaks.f32_flops : profile.peaks.bf16_flops;
    table += line("  %-26s %7lld %9.2f %5.1f%% %9.1f %8.1f %6.0f%%\n", name.c_str(),
                  static_cast<long long>(record.calls), record.seconds * 1e3,
                  record.seconds / profile.seconds * 100.0, flops / 1e9,
                  record.bytes / record.seconds / 1e9, flops / peak * 100.0);
  }
  table += line("  operations cover %.1f%% of %.1f ms\n",
                profile.ops.seconds() / profile.seconds * 100.0, profile.seconds * 1e3);
  return table;
}

}  // namespace tidemill::bench
