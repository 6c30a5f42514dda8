// SPDX-License-Identifier: Apache-2.0
// Adapters for the figures that measure them.
#pragma once

#include <cstdint>
#include <string>

#include "engines/formats/model_files.hpp"
#include "engines/runtime/named_adapters.hpp"

namespace tidemill::bench {

/// The rank of the measured adapters. They are on all linear layers except the head.
inline constexpr std::int64_t kBenchRank = 16;

/// Returns the config of the measured adapters.
[[nodiscard]] engines::AdapterConfig bench_adapter_config();

/// Returns the name under which `load_bench_adapters` loads adapter `index`.
[[nodiscard]] std::string bench_adapter_name(std::int64_t index);

/// Loads `count` adapters with random f32 weights over `model`.
/// Errors: those of `NamedAdapters::load`.
[[nodiscard]] Status load_bench_adapters(const engines::ModelFiles& model, std::int64_t count,
                                         engines::NamedAdapters& adapters);

}  // namespace tidemill::bench
