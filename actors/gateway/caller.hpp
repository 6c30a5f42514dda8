// SPDX-License-Identifier: Apache-2.0
// Who has sent a request, as far as the server treats callers differently.
#pragma once

#include <string>

#include "engines/priority.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::actors {

/// Whose requests share the server fairly, and how urgent they are.
struct Caller {
  std::string tenant;  // empty: the tenant of all callers without one
  engines::Priority priority = engines::Priority::kNormal;
  bool may_tune = true;  // whether the key has the scope `tune`; true without keys

  /// Makes a request one of this caller. The cache salt that the request has then separates this
  /// tenant's, too: tenants never share cached prompts.
  void sign(engines::RolloutRequest& request) const {
    request.tenant = tenant;
    request.priority = priority;
    // Names of tenants have no line breaks, so no two pairs of names and salts give the same.
    if (!tenant.empty() || !request.cache_salt.empty()) {
      request.cache_salt = tenant + "\n" + request.cache_salt;
    }
  }
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Caller& x) {
  return f(x.tenant, x.priority, x.may_tune);
}

}  // namespace tidemill::actors
