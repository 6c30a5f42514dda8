// SPDX-License-Identifier: Apache-2.0
// multipart/form-data bodies: the parts of a form that is uploaded with files.
//
// Source: RFC 2046, section 5.1.1 (boundaries), RFC 7578 (form-data), RFC 8187 (`filename*`).
// Stricter than these: text before the first and after the last boundary is refused, and so is a
// line that begins with a boundary but is none.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::actors::openai {

/// One part of a form.
struct FormPart {
  std::string name;                     // of the field
  std::optional<std::string> filename;  // as given, which may be a path; absent: not a file
  std::string_view content;             // a part of the body
};

/// The limits of a form.
struct FormLimits {
  std::size_t max_parts = 16;
  std::size_t max_header_bytes = std::size_t{4} << 10U;  // of one part
};

/// Returns the boundary that a Content-Type of `multipart/form-data; boundary=...` names.
/// Errors: `kInvalidArgument`.
[[nodiscard]] Result<std::string> form_boundary(std::string_view content_type);

/// Splits a complete body into its parts, in their order. Borrows `body` until the parts are
/// destroyed. Takes time in proportion to the body.
/// Errors: `kInvalidArgument` naming the part, counted from 1.
[[nodiscard]] Result<std::vector<FormPart>> parse_form(std::string_view body,
                                                       std::string_view boundary,
                                                       const FormLimits& limits = {});

}  // namespace tidemill::actors::openai
