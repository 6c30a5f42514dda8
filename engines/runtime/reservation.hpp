// SPDX-License-Identifier: Apache-2.0
// Computes the largest passes that the options of a runtime allow, and how much device memory the
// runtime reserves for them when it is opened. Prepared weights are not included.
#pragma once

#include <cstdint>

#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// Returns the limits of one iteration of generation over a cache of `cache_tokens` positions.
[[nodiscard]] PassLimits generation_limits(const ModelConfig& config, const RuntimeOptions& options,
                                           std::int64_t cache_tokens);
/// Returns the maximum numbers of rows that an iteration of generation takes through a layer, and
/// through the head at a time.
[[nodiscard]] BypassRows generation_rows(const ModelConfig& config,
                                         const RuntimeOptions& options) noexcept;

/// Returns the largest number of rows whose activations a training pass may keep. `row_bytes` are
/// the bytes of one (`Activations::bytes_per_row`).
[[nodiscard]] std::int64_t max_train_rows(const RuntimeOptions& options,
                                          std::int64_t row_bytes) noexcept;
/// Returns the largest number of rows of a training sequence.
[[nodiscard]] std::int64_t max_sequence_rows(const ModelConfig& config,
                                             const RuntimeOptions& options) noexcept;
/// Returns the largest training pass over a cache of `cache_tokens` positions.
[[nodiscard]] PassLimits training_limits(const ModelConfig& config, const RuntimeOptions& options,
                                         std::int64_t row_bytes, std::int64_t cache_tokens);

/// Returns the memory that a runtime reserves when it is opened. If `options.optimizer` is set, it
/// includes the job that trains the policy: the adapter of `spec`, or the whole model if `spec` is
/// empty. Jobs and adapters that are opened later need more. Units: bytes.
[[nodiscard]] std::int64_t reserved_bytes(const ModelConfig& config, const RuntimeOptions& options,
                                          const AdapterSpec& spec);

}  // namespace tidemill::engines
