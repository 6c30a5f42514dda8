// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/files.hpp"

#include <utility>

#include "actors/gateway/openai/multipart.hpp"
#include "actors/gateway/openai/query.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::openai {
namespace {

constexpr std::uint32_t kMaxFiles = 10'000;  // of a part of a list

ApiError refused(const std::string& field, const std::string& problem) {
  const std::string path = quote_unless_plain(field);
  return {400, path + ": " + problem, path};
}

// Reads a part of the form. Returns the refusal, if any.
std::optional<ApiError> read_part(const FormPart& part, FileUpload& upload, bool& has_file) {
  if (part.name == "file") {
    if (std::exchange(has_file, true)) {
      return refused("file", "occurs twice");
    }
    upload.filename = part.filename.value_or("");
    upload.content = part.content;
    return upload.filename.empty() ? std::optional(refused("file", "needs a filename"))
                                   : std::nullopt;
  }
  if (part.name == "purpose") {
    if (!upload.purpose.empty()) {
      return refused("purpose", "occurs twice");
    }
    upload.purpose = part.content;
    if (upload.purpose != storage::kFineTunePurpose) {
      return refused("purpose", "must be " + quote(storage::kFineTunePurpose) + ", and not " +
                                    quote(upload.purpose));
    }
    return std::nullopt;
  }
  return refused(part.name, part.name.starts_with("expires_after")
                                ? "not supported: files are kept until they are deleted"
                                : "unknown field");
}

}  // namespace

ApiResult<FileUpload> parse_upload(std::string_view body, std::string_view content_type) {
  const auto boundary = form_boundary(content_type);
  if (!boundary.ok()) {
    return ApiError{400, boundary.status().message()};
  }
  const auto parts = parse_form(body, boundary.value());
  if (!parts.ok()) {
    return ApiError{400, parts.status().message()};
  }
  FileUpload upload;
  bool has_file = false;
  for (const FormPart& part : parts.value()) {
    if (auto refusal = read_part(part, upload, has_file)) {
      return std::move(*refusal);
    }
  }
  if (!has_file) {
    return refused("file", "missing; must be a file");
  }
  if (upload.purpose.empty()) {
    return refused("purpose", "missing; must be " + quote(storage::kFineTunePurpose));
  }
  return upload;
}

ApiResult<storage::FileQuery> parse_file_query(std::string_view target) {
  QueryReader reader(target, {"after", "limit", "order", "purpose"});
  storage::FileQuery query;
  query.after = reader.text("after");
  query.purpose = reader.text("purpose");
  query.limit = reader.limit("limit", kMaxFiles, kMaxFiles);
  const std::string order = reader.text("order");
  if (order == "asc") {
    query.order = storage::FileOrder::kOldestFirst;
  } else if (!order.empty() && order != "desc") {
    reader.refuse("order", R"(must be "asc" or "desc")");
  }
  if (reader.error().has_value()) {
    return *reader.error();
  }
  return query;
}

Json to_json(const storage::StoredFile& file) {
  return Json::Object{{"id", file.id},
                      {"object", "file"},
                      {"bytes", static_cast<std::int64_t>(file.bytes)},
                      {"created_at", file.created_at},
                      {"expires_at", Json()},
                      {"filename", file.filename},
                      {"purpose", file.purpose},
                      {"status", "processed"},
                      {"status_details", Json()}};
}

Json to_json(const storage::FilePage& page) {
  Json::Array data;
  for (const storage::StoredFile& file : page.entries) {
    data.push_back(to_json(file));
  }
  const bool empty = page.entries.empty();
  return Json::Object{{"object", "list"},
                      {"data", std::move(data)},
                      {"first_id", empty ? Json() : Json(page.entries.front().id)},
                      {"last_id", empty ? Json() : Json(page.entries.back().id)},
                      {"has_more", page.has_more}};
}

Json deleted_file(const std::string& id) {
  return Json::Object{{"id", id}, {"object", "file"}, {"deleted", true}};
}

}  // namespace tidemill::actors::openai
