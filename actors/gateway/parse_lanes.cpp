// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/parse_lanes.hpp"

namespace tidemill::actors {
namespace {

// Whether a string of the body may be written with an escape for printable ASCII, so that a search
// for its text does not find it. Encoders write few such characters so, and most none.
bool escapes_ascii(std::string_view body) noexcept {
  constexpr std::string_view kEscape = "\\u00";
  for (std::size_t at = body.find(kEscape); at != std::string_view::npos;
       at = body.find(kEscape, at + 1)) {
    const std::size_t digit = at + kEscape.size();
    if (digit < body.size() && body[digit] >= '2' && body[digit] <= '7') {
      return true;
    }
  }
  return false;
}

}  // namespace

ParseLane lane_of_json(std::string_view body) noexcept {
  if (body.size() > kMaxSmallBodyBytes) {
    return ParseLane::kLarge;
  }
  const auto names = [body](std::string_view field) {
    return body.find(field) != std::string_view::npos;
  };
  return names("\"response_format\"") || names("\"tool_choice\"") || escapes_ascii(body)
             ? ParseLane::kConstrained
             : ParseLane::kSmall;
}

}  // namespace tidemill::actors
