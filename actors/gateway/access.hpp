// SPDX-License-Identifier: Apache-2.0
// Which requests a gateway accepts: under which host names, from which web origins, with which
// keys.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/gateway/api_keys.hpp"
#include "actors/gateway/caller.hpp"
#include "actors/gateway/fair_limit.hpp"
#include "actors/gateway/http/http_message.hpp"
#include "actors/gateway/openai/api_error.hpp"

namespace tidemill::actors {

/// The host names and keys that requests must have. The checks below return nullopt if a request is
/// accepted, or else the error to respond with.
struct AccessRules {
  /// The host names and addresses by which clients may address the server, in lower case and
  /// without a port. A browser that is made to resolve another name to this host (DNS rebinding)
  /// sends that name, and is refused. Empty: all.
  std::vector<std::string> host_names;
  /// The keys that requests need. Null: none are needed.
  std::shared_ptr<const ApiKeys> keys;
};

/// Checks the headers Host and Origin of a request. Refuses requests of web pages of other origins,
/// because browsers send them without asking the user.
/// Errors: 421 for a host that is not in the rules, 403 for another origin.
[[nodiscard]] std::optional<openai::ApiError> check_host_and_origin(const HttpRequest& request,
                                                                    const AccessRules& rules);

/// Checks that a request has a key that permits `scope`, in the header `Authorization: Bearer KEY`,
/// or in `X-API-Key`; if both are present, the first counts. A prefix "tml-", which Tinker's
/// package requires of keys, is removed before the comparison. Errors: 401 without a valid key, 403
/// if it does not permit the scope.
[[nodiscard]] std::optional<openai::ApiError> check_key(const HttpRequest& request,
                                                        const AccessRules& rules, KeyScope scope);

/// Checks that a request has a key that permits at least one of `scopes`. Accepts every request if
/// `scopes` is empty. If no scope is permitted, returns the error of the last one.
[[nodiscard]] std::optional<openai::ApiError> check_any_scope(const HttpRequest& request,
                                                              const AccessRules& rules,
                                                              std::span<const KeyScope> scopes);

/// Returns what the key of a request says about its sender.
[[nodiscard]] Caller caller_of(const HttpRequest& request, const AccessRules& rules);

/// Returns whether the keys belong to several tenants.
[[nodiscard]] Tenancy tenancy_of(const AccessRules& rules);

/// Checks what can be checked before the body of a request arrives: Host, Origin and, if the path
/// needs a key, that there is a valid one.
[[nodiscard]] std::optional<openai::ApiError> check_head(const HttpRequest& request,
                                                         const AccessRules& rules);

/// How long bodies may be, in bytes.
struct BodyLimits {
  /// Of OpenAI's API. Parsing takes up to about eight times as much memory.
  std::size_t json = std::size_t{32} << 20U;
  std::size_t upload = 0;  // of an upload to /v1/files; 0: the server stores no files
  std::size_t tinker = std::size_t{64} << 20U;  // of Tinker's API
};

/// Returns how long the body of a request may be, given its head. The limit for uploads holds only
/// for uploads with a key that permits `tune`.
[[nodiscard]] std::size_t max_body_bytes(const HttpRequest& request, const AccessRules& rules,
                                         const BodyLimits& limits);

/// Returns whether a path needs no key.
[[nodiscard]] bool is_open_path(std::string_view path) noexcept;

}  // namespace tidemill::actors
