// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/http/. The rules about the head of a request that the parser leaves to
// its caller. They keep a proxy and this server from reading the end of a body differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "actors/gateway/http/http_message.hpp"

namespace tidemill::actors {

/// Why a request is refused.
struct HeadProblem {
  std::uint32_t status = 400;
  const char* why = "";
};

/// Returns the first rule that the head breaks, or nullopt. `version` is 10 or 11.
/// Source: RFC 9112, sections 3.2 and 6; RFC 9110, section 10.1.1.
[[nodiscard]] std::optional<HeadProblem> find_head_problem(const HttpRequest& head,
                                                           unsigned version,
                                                           std::size_t max_headers);

}  // namespace tidemill::actors
