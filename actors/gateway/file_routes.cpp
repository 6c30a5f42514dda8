// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/file_routes.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "actors/gateway/file_part.hpp"
#include "actors/gateway/openai/files.hpp"

namespace tidemill::actors {
namespace {

using openai::ApiError;
using storage::FileStore;

// Returns the error for a failure of the store. The server is at fault if its files are damaged or
// its disk is full.
ApiError file_error(const Status& status) {
  ApiError error = openai::to_storage_error(status);
  // A message that begins with the name of a field says so in `param`.
  for (const char* field : {"file", "filename", "purpose"}) {
    error.param = status.message().starts_with(std::string(field) + ":") ? field : error.param;
  }
  return error;
}

NextStep store_upload(FileStore& files, std::string_view body, std::string_view content_type,
                      std::int64_t now) {
  const auto parsed = openai::parse_upload(body, content_type);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return fail_with(*error);
  }
  const auto& upload = std::get<openai::FileUpload>(parsed);
  const auto stored =
      files.put({upload.filename, upload.purpose, now}, std::as_bytes(std::span(upload.content)));
  if (stored.status().code() == Errc::kNotFound) {
    return fail_with({500, "a directory of the server is missing"});
  }
  return stored.ok() ? respond_with(openai::json_response(openai::to_json(stored.value())))
                     : fail_with(file_error(stored.status()));
}

// Returns the step that begins to send a file. `on_file_sent` sends its bytes.
NextStep begin_download(FileStore& files, const std::string& id) {
  auto opened = files.open_bytes(id);
  if (!opened.ok()) {
    return fail_with(file_error(opened.status()));
  }
  auto file = std::make_shared<const ReadableFile>(std::move(opened).value());
  return [file](GatewaySelf self, ExchangeId exchange) {
    self->state.exchanges.at(exchange).download = Download{file, 0};
    self->state.deps.http->start_body(
        exchange, {200, {{"content-type", "application/octet-stream"}}, ""}, file->size_bytes());
  };
}

// Reads a part of a file, and returns the step that sends it.
NextStep read_part(const std::shared_ptr<const ReadableFile>& file, std::uint64_t offset) {
  auto part = read_file_part(*file, offset);
  if (!part.ok()) {
    return fail_with(file_error(part.status()));
  }
  return [part = std::move(part).value()](GatewaySelf self, ExchangeId id) mutable {
    Download& download = *self->state.exchanges.at(id).download;
    download.offset += part.size();
    const bool is_last = download.offset == download.file->size_bytes();
    self->state.deps.http->write(id, std::move(part));
    if (is_last) {
      self->state.deps.http->end(id);
      end_exchange(self, id);
    }
  };
}

}  // namespace

void list_files(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  const auto query = openai::parse_file_query(request.target);
  if (const auto* error = std::get_if<ApiError>(&query)) {
    fail(self, request.exchange, *error);
    return;
  }
  work_on_files(self, request.exchange,
                [files = self->state.deps.files, query = std::get<storage::FileQuery>(query)] {
                  const auto page = files->list(query);
                  return page.ok()
                             ? respond_with(openai::json_response(openai::to_json(page.value())))
                             : fail_with(file_error(page.status()));
                });
}

void upload_file(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  const std::string type(request.header("content-type").value_or(""));
  if (!lower_case(type).starts_with("multipart/form-data")) {
    fail(self, request.exchange, {415, "the Content-Type must be multipart/form-data"});
    return;
  }
  work_on_files(self, request,
                [files = self->state.deps.files, type, now = self->state.deps.unix_time()](
                    const std::string& body) { return store_upload(*files, body, type, now); });
}

void get_file(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  work_on_files(self, request.exchange, [files = self->state.deps.files, id = arguments[0]] {
    const auto file = files->find(id);
    return file.ok() ? respond_with(openai::json_response(openai::to_json(file.value())))
                     : fail_with(file_error(file.status()));
  });
}

void delete_file(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  work_on_files(self, request.exchange, [files = self->state.deps.files, id = arguments[0]] {
    const Status status = files->remove(id);
    return status.ok() ? respond_with(openai::json_response(openai::deleted_file(id)))
                       : fail_with(file_error(status));
  });
}

void get_file_content(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  Exchange& exchange = self->state.exchanges.at(request.exchange);
  if (!self->state.download_bytes.fits(exchange.caller.tenant, kDownloadPartBytes)) {
    refuse_too_many(self, request.exchange);
    return;
  }
  self->state.download_bytes.take(exchange.caller.tenant, kDownloadPartBytes);
  exchange.download_bytes = kDownloadPartBytes;
  work_on_files(self, request.exchange, [files = self->state.deps.files, id = arguments[0]] {
    return begin_download(*files, id);
  });
}

void on_file_sent(GatewaySelf self, ExchangeId id) {
  const auto found = self->state.exchanges.find(id);
  if (found == self->state.exchanges.end() || !found->second.download.has_value()) {
    return;  // closed meanwhile
  }
  const Download& download = *found->second.download;
  work_on_files(self, id, [file = download.file, offset = download.offset] {
    return read_part(file, offset);
  });
}

}  // namespace tidemill::actors
