// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. Chooses the memory of the training jobs of Tinker's API.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engines/runtime/model_runtime.hpp"

namespace tidemill::workflows {

/// What the jobs of all clients share.
struct TinkerMemory {
  /// The maximum tokens of a sequence to train on, with the target of its last position.
  std::int64_t longest_tokens = 0;
  /// The activations of one job should not exceed this. Units: bytes.
  std::int64_t job_bytes = 0;
};

/// Sets what `job` keeps for the backward pass (`recompute`, `activation_bytes`, `limits`), so that
/// no sequence of `longest_tokens` is refused. Of the policies kNone, kCheap and kLayer it takes
/// the first with which the activations fit `job_bytes`; if none does, kLayer. This changes no bit
/// of a result. `job.adapter` and `job.window_tokens` must be set. `compute` is the type that the
/// model computes in.
void set_job_memory(const engines::ModelConfig& model, DType compute, const TinkerMemory& memory,
                    engines::JobOptions& job);

/// Returns the memory that a job with a new adapter takes: `activation_bytes`, and 6 times its
/// parameters in f32: the weights, their gradients, the two moments of AdamW, a layout for the
/// products and a snapshot. Returns `activation_bytes` for a configuration that does not suit the
/// model, which is refused later.
[[nodiscard]] std::size_t tinker_model_bytes(const engines::AdapterConfig& config,
                                             const engines::ModelConfig& model,
                                             std::int64_t activation_bytes);
/// Returns the memory that a snapshot of such a job takes: its parameters in f32. Returns 0 for a
/// configuration that does not suit the model.
[[nodiscard]] std::size_t tinker_snapshot_bytes(const engines::AdapterConfig& config,
                                                const engines::ModelConfig& model);

}  // namespace tidemill::workflows
