// SPDX-License-Identifier: Apache-2.0
// Tells before encoding whether a request or a result can fit into one message. Private to this
// folder.
#pragma once

#include <cstdint>

#include "engines/rollout_engine.hpp"

namespace tidemill::actors {

/// Returns a lower bound of the size of the encoded message. A result with all logits of a long
/// prompt can be larger than a Cap'n Proto message may be. Units: bytes.
[[nodiscard]] inline std::uint64_t least_wire_bytes(const engines::RolloutRequest& request) {
  std::uint64_t bytes = 4 * (request.prompt_ids.size() + request.stop_ids.size()) +
                        8 * request.sampling.logit_bias.size() + request.adapter.size() +
                        request.tenant.size() + request.cache_salt.size();
  for (const std::string& text : request.stop_strings) {
    bytes += text.size();
  }
  return bytes;
}
[[nodiscard]] inline std::uint64_t least_wire_bytes(const engines::RolloutResult& result) {
  return 4 * (result.response_ids.size() + result.behavior_logprobs.size() +
              result.prompt_logprobs.size() + result.prompt_logits.size()) +
         8 * (result.top_logprobs.size() + result.prompt_top_logprobs.size()) +
         24 * result.versions.size() + result.error.size();
}

}  // namespace tidemill::actors
