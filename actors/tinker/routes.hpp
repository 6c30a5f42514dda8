// SPDX-License-Identifier: Apache-2.0
// The paths of Tinker's API.
#pragma once

#include <span>
#include <string_view>

#include "actors/gateway/api_keys.hpp"
#include "actors/gateway/tinker/read_calls.hpp"
#include "actors/tinker/service.hpp"

namespace tidemill::actors::tinker {

/// Returns whether a path belongs to Tinker's API.
[[nodiscard]] bool is_tinker_path(std::string_view path) noexcept;

/// Returns the scopes that permit a request for `path`; a key needs one of them. Empty: no key is
/// needed.
[[nodiscard]] std::span<const KeyScope> scopes_of(std::string_view path) noexcept;

/// Returns what a request asks for. A refusal has status 404 for an unknown path, 405 for a method
/// that the path does not have, 415 for another type of body, and otherwise that of its body.
/// A call with a number has the digest of its path and body, which a request that is sent again
/// repeats.
/// Threads: safe to call concurrently. Takes time in proportion to the body.
[[nodiscard]] Call parse_call(const HttpRequest& request, const ModelLimits& model);

}  // namespace tidemill::actors::tinker
