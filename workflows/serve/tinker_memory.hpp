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

/// Returns how many jobs may be open: as many as have room in `memory_bytes` if each uses its
/// activations up, at least 1 and at most `most`. `job_bytes` are the activations of one.
[[nodiscard]] std::size_t max_jobs(std::int64_t memory_bytes, std::int64_t job_bytes,
                                   std::size_t most) noexcept;

}  // namespace tidemill::workflows
