// SPDX-License-Identifier: Apache-2.0
// What both views of a model compute with: threads, operations, the model's code, one cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/ops.hpp"
#include "engines/runtime/factory.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// What generation gives up for room in the cache.
enum class RoomFrom : std::uint8_t {
  kCached,   // what is kept for requests to come
  kRunning,  // then sequences in flight too, which are preempted
};

/// One device with one model's architecture on it; weights are passed to each call.
///
/// Threads: one call at a time, over everything that shares it.
struct Device {
  /// Returns the rows of logits held at once: what fits 64 MiB, in [16, 2048]; changes no bit.
  [[nodiscard]] static std::int64_t logit_rows(const ModelConfig& config) noexcept;

  ModelConfig config;
  std::unique_ptr<Workers> workers;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvCache> cache;
  /// Frees cache pages held by generation until this many are free, or nothing more can be freed.
  /// Set by the rollout view.
  std::function<void(std::int64_t pages, RoomFrom from)> make_room;
  std::string description;

  /// Starts the threads and reserves the cache.
  /// Errors: `kInvalidArgument` naming the option, `kResourceExhausted` (a cache without a page),
  /// those of the backend.
  [[nodiscard]] static Result<std::unique_ptr<Device>> create(const ModelConfig& config,
                                                              const RuntimeOptions& options);
};

}  // namespace tidemill::engines
