// SPDX-License-Identifier: Apache-2.0
// New adapters, initialized at random.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {

/// Checks what `make_adapter` checks before it makes tensors, with the same errors.
[[nodiscard]] Status check_new_adapter(const AdapterConfig& config, const ModelConfig& model,
                                       const std::string& location);

/// Returns what `make_adapter` makes, but the tensors have no data. For estimates of the memory
/// that an adapter takes. Errors: as `check_new_adapter`.
[[nodiscard]] Result<AdapterFiles> outline_adapter(const AdapterConfig& config,
                                                   const ModelConfig& model,
                                                   const std::string& location);

/// Returns how many parameters the low-rank products of a new adapter have. Errors: as
/// `check_new_adapter`.
[[nodiscard]] Result<std::int64_t> num_low_rank_parameters(const AdapterConfig& config,
                                                           const ModelConfig& model,
                                                           const std::string& location);

/// Makes a new adapter for a model, initialized at random from `seed`. At first it changes no
/// result of a runtime that computes in `compute` (`RuntimeOptions`); see `init_adapter`.
/// `location` names it in messages, as the folder does for an adapter from files.
/// Errors: `kInvalidArgument` if a target names no layer of the model; those of `resolve_adapter`,
/// `adapter_spec` and `init_adapter`.
[[nodiscard]] Result<AdapterFiles> make_adapter(const AdapterConfig& config,
                                                const ModelFiles& model, DType compute,
                                                std::uint64_t seed,
                                                std::string location = "new adapter");

}  // namespace tidemill::engines
