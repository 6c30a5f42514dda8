// SPDX-License-Identifier: Apache-2.0
// What generation and all jobs of a runtime compute with: threads, operations, model code and
// cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/ops.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// Returns the end of a message that concerns a sample: " sample_id=" and the id.
[[nodiscard]] inline std::string sample_text(SampleId id) {
  return " sample_id=" + std::to_string(id.value);
}

/// What generation may give up to free pages of the cache.
enum class ReclaimFrom : std::uint8_t {
  kCached,   // cached pages that no sequence uses
  kRunning,  // those first, then pages of running sequences, which are preempted
};

/// The parts that generation and all jobs share. Weights are not part of it: each call passes them.
///
/// Threads: one call at a time over all users of the context.
struct RuntimeContext {
  /// Returns the number of rows of logits computed at a time: as many as fit 64 MiB, clamped to
  /// [16, 2048]. It changes no bit of any result.
  [[nodiscard]] static std::int64_t logit_rows(const ModelConfig& config) noexcept;

  /// Returns the number of rows of logits that training computes at a time if at most
  /// `window_tokens` rows go through a layer together (0: no limit): a multiple of the backend's
  /// `row_sum_step`.
  [[nodiscard]] static std::int64_t chunk_rows(const ModelConfig& config,
                                               std::int64_t window_tokens,
                                               const BackendTraits& traits) noexcept {
    const std::int64_t rows =
        window_tokens > 0 ? std::min(logit_rows(config), window_tokens) : logit_rows(config);
    return std::max(rows / traits.row_sum_step, std::int64_t{1}) * traits.row_sum_step;
  }

  /// Returns the options of the head for training. With windows, a unit of the head costs about as
  /// much as the widest linear layer over a window.
  [[nodiscard]] static HeadOptions head_options(const ModelConfig& config, float temperature,
                                                std::int64_t window_tokens,
                                                const BackendTraits& traits) noexcept {
    const std::int64_t rows = chunk_rows(config, window_tokens, traits);
    return {temperature, rows, config.intermediate_size * window_tokens / rows};
  }

  /// Returns how many positions the cache holds.
  [[nodiscard]] std::int64_t cache_tokens() const noexcept {
    return cache->num_pages() * cache->options().page_tokens;
  }

  ModelConfig config;
  std::unique_ptr<Workers> workers;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvCache> cache;
  /// Pages of the cache that micro-batches hold. Only the jobs that hold them free them.
  std::int64_t job_pages = 0;
  /// Frees cache pages that generation holds until `pages` pages are free or no more can be freed.
  /// The rollout view sets it.
  std::function<void(std::int64_t pages, ReclaimFrom from)> make_room;
  /// Returns the pages that the largest request of generation may need. The rollout view sets it.
  std::function<std::int64_t()> largest_request;
  /// The pages that the longest sequence of each batch in progress needs, except the batches of
  /// jobs with reserved pages.
  std::multiset<std::int64_t> batch_needs;
  std::string description;

  /// Starts the threads, reserves the memory of the device, and allocates the cache and the
  /// workspace of generation. `spec` describes the policy's adapter, if there is one.
  /// Errors: `kInvalidArgument` naming the option, `kResourceExhausted` (a cache too small for one
  /// page), those of the backend.
  [[nodiscard]] static Result<std::unique_ptr<RuntimeContext>> create(const ModelConfig& config,
                                                                      const RuntimeOptions& options,
                                                                      const AdapterSpec& spec);
};

}  // namespace tidemill::engines
