// SPDX-License-Identifier: Apache-2.0
// Fuzzes uploads: the first line is the Content-Type, the rest is the body.
#include <algorithm>
#include <variant>

#include "actors/gateway/openai/files.hpp"
#include "actors/gateway/openai/multipart.hpp"
#include "base/text/utf8.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {

void uploaded_form(std::string_view input) {
  const std::size_t end = std::min(input.find('\n'), input.size());
  const std::string_view type = input.substr(0, end);
  const std::string_view body = input.substr(std::min(end + 1, input.size()));
  const auto boundary = actors::openai::form_boundary(type);
  if (!boundary.ok()) {
    require_refusal(boundary.status(), "the Content-Type");
  } else {
    require(!boundary.value().empty() && boundary.value().size() <= 70, "boundaries are short");
    const auto parts = actors::openai::parse_form(body, boundary.value());
    if (!parts.ok()) {
      require_refusal(parts.status(), "the body is not valid multipart/form-data");
    } else {
      require(parts.value().size() <= 16, "parts are limited");
      for (const actors::openai::FormPart& part : parts.value()) {
        require(!part.name.empty(), "a part has a name");
        require(!find_invalid_utf8(part.name), "names are UTF-8");
        require(part.content.find("\r\n--" + boundary.value()) == std::string_view::npos,
                "a part has no boundary in it");
        require(part.content.data() >= body.data() &&
                    part.content.data() + part.content.size() <= body.data() + body.size(),
                "a part is a part of the body");
      }
    }
  }
  const auto upload = actors::openai::parse_upload(body, type);
  if (const auto* error = std::get_if<actors::openai::ApiError>(&upload)) {
    require(error->status == 400, "a bad body is the client's fault");
    require_refusal(invalid_argument(error->message), "");
  } else {
    const auto& file = std::get<actors::openai::FileUpload>(upload);
    require(!file.filename.empty() && file.purpose == "fine-tune", "an upload is complete");
  }
}

}  // namespace tidemill::fuzz
