// SPDX-License-Identifier: Apache-2.0
#include "engines/rollout_engine.hpp"

namespace tidemill::engines {

const char* finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kFailed: return "failed";
  }
  return "unknown";
}

}  // namespace tidemill::engines
