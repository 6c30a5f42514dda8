// SPDX-License-Identifier: Apache-2.0
#include "base/status.hpp"

namespace tidemill {

std::string_view errc_name(Errc code) noexcept {
  switch (code) {
    case Errc::kOk: return "ok";
    case Errc::kInvalidArgument: return "invalid_argument";
    case Errc::kNotFound: return "not_found";
    case Errc::kTimeout: return "timeout";
    case Errc::kUnavailable: return "unavailable";
    case Errc::kResourceExhausted: return "resource_exhausted";
    case Errc::kStaleVersion: return "stale_version";
    case Errc::kCorruptData: return "corrupt_data";
    case Errc::kUnimplemented: return "unimplemented";
    case Errc::kInternal: return "internal";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (ok()) {
    return "ok";
  }
  std::string text(errc_name(code_));
  text += ": ";
  text += message_;
  return text;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) {
    return {};
  }
  std::string text(context);
  text += ": ";
  text += message_;
  return {code_, std::move(text)};
}

}  // namespace tidemill
