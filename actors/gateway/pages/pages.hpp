// SPDX-License-Identifier: Apache-2.0
// The pages that a server shows in a browser. They are part of the program and load nothing from
// elsewhere.
#pragma once

#include <optional>
#include <string_view>

#include "actors/gateway/http/http_message.hpp"

namespace tidemill::actors::pages {

/// Returns whether there is a page or one of its files at a path: `/`, `/chat`, `/jobs`, `/server`
/// or `/pages/FILE`. They need no API key: they contain nothing about the server, and their scripts
/// send the user's key with their own requests.
[[nodiscard]] bool contains(std::string_view path) noexcept;

/// Returns the response to a request for a page or one of its files, or nullopt if its path is
/// neither. The status is 304 if the request names the version that it has (`If-None-Match`), and
/// 405 if the method is not GET.
[[nodiscard]] std::optional<HttpResponse> respond(const HttpRequest& request);

}  // namespace tidemill::actors::pages
