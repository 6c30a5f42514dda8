// SPDX-License-Identifier: Apache-2.0
// Which policy version generated which tokens of a response.
#pragma once

#include <cstdint>

#include "base/ids.hpp"

namespace tidemill::engines {

/// A run of `num_tokens` consecutive response tokens that one version generated.
struct VersionSpan {
  PolicyVersion version;
  std::uint32_t num_tokens = 0;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, VersionSpan& x) {
  return f(x.version, x.num_tokens);
}

}  // namespace tidemill::engines
