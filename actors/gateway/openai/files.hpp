// SPDX-License-Identifier: Apache-2.0
// The requests and responses of /v1/files.
// Source: `resources/files.py` and `types/file_*.py` of the openai Python package.
#pragma once

#include <string>
#include <string_view>

#include "actors/gateway/openai/api_error.hpp"
#include "storage/jobs/file_store.hpp"

namespace tidemill::actors::openai {

/// A file that a client uploads.
struct FileUpload {
  std::string filename;
  std::string purpose;
  std::string_view content;  // a part of the body
};

/// Parses the form {purpose: "fine-tune", file: FILE}. Borrows `body` until the result is
/// destroyed. Errors: 400 naming the field.
[[nodiscard]] ApiResult<FileUpload> parse_upload(std::string_view body,
                                                 std::string_view content_type);

/// Parses the query of a request for a list of files: `after`, `limit` (1 to 10,000), `order` and
/// `purpose`. Errors: 400 naming the parameter.
[[nodiscard]] ApiResult<storage::FileQuery> parse_file_query(std::string_view target);

/// Returns a file object.
[[nodiscard]] Json to_json(const storage::StoredFile& file);
/// Returns a part of the list of files.
[[nodiscard]] Json to_json(const storage::FilePage& page);
/// Returns the object for a file that has been deleted.
[[nodiscard]] Json deleted_file(const std::string& id);

}  // namespace tidemill::actors::openai
