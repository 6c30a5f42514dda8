// SPDX-License-Identifier: Apache-2.0
// A sequence as the planner sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engines/priority.hpp"
#include "engines/scheduler/prefix_tree.hpp"

namespace tidemill::engines {

/// Whether a sequence may start from pages that other sequences have computed.
enum class PrefixUse : std::uint8_t {
  kShared,
  kNone,  // every token must be computed, because each one has an output
};

/// What the planner knows about weights.
struct ServedWeights {
  std::string name;        // identifies the content
  std::uint64_t step = 0;  // a sequence waits for its `min_step`
};

struct TenantShare;

/// A sequence as the planner sees it. The owner of the sequence sets the first group of fields and
/// appends sampled tokens to `tokens`. Only the planner changes the second group.
struct PlannedSequence {
  std::vector<std::int32_t> tokens;  // the prompt (at least one token), then the response
  std::int64_t prompt_length = 0;
  std::int64_t max_new_tokens = 0;
  std::uint64_t min_step = 0;  // starts once this step is served
  PrefixUse prefix_use = PrefixUse::kShared;
  Priority priority = Priority::kNormal;
  std::string tenant;      // shares the engine fairly with the others of its priority
  std::string cache_salt;  // pages are shared only with sequences of the same salt
  /// The weights that the sequence starts with, read when it starts. If null, it starts with those
  /// that `AdmissionRule` names.
  const ServedWeights* own_weights = nullptr;

  std::uint64_t serial = 0;         // submission order
  std::uint64_t start_order = 0;    // order of the first starts
  TenantShare* share = nullptr;     // of `tenant` at `priority`
  std::int64_t num_charged = 0;     // tokens charged to `share`
  std::string weights;              // the weights that compute it; empty before it starts
  std::int64_t num_cached = 0;      // tokens whose keys and values are in `pages`
  std::vector<std::int32_t> pages;  // empty if it is not running
  PrefixTree::Hold hold;
  HiddenRow row;  // after the last token, if that was cached when the sequence started

  [[nodiscard]] std::int64_t length() const noexcept {
    return static_cast<std::int64_t>(tokens.size());
  }
  /// Returns the number of tokens to compute before the next one can be sampled.
  [[nodiscard]] std::int64_t num_uncached() const noexcept { return length() - num_cached; }
  [[nodiscard]] bool has_response() const noexcept { return length() > prompt_length; }
  /// Returns the maximum number of tokens in the cache. The last token is never fed back, so it is
  /// never cached.
  [[nodiscard]] std::int64_t max_cached() const noexcept {
    return prompt_length + (max_new_tokens > 0 ? max_new_tokens - 1 : 0);
  }
};

}  // namespace tidemill::engines
