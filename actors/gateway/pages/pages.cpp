// SPDX-License-Identifier: Apache-2.0
// The headers keep a page from running or loading anything but these files, even if text of a model
// became markup, and other pages from showing it in a frame.
#include "actors/gateway/pages/pages.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "actors/gateway/openai/api_error.hpp"
#include "actors/gateway/pages/embedded_files.hpp"

namespace tidemill::actors::pages {
namespace {

constexpr std::string_view kFolder = "/pages/";

constexpr std::array kPages = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"/", "chat.html"},
    {"/chat", "chat.html"},
    {"/jobs", "jobs.html"},
    {"/server", "server.html"},
});

constexpr std::array kTypes = std::to_array<std::pair<std::string_view, std::string_view>>({
    {".html", "text/html; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
});

constexpr std::string_view kSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Returns the file at a path, or null.
const EmbeddedFile* file_at(std::string_view path) noexcept {
  std::string_view name;
  if (const auto page = std::find_if(kPages.begin(), kPages.end(),
                                     [&](const auto& one) { return one.first == path; });
      page != kPages.end()) {
    name = page->second;
  } else if (path.starts_with(kFolder)) {
    name = path.substr(kFolder.size());
  }
  const auto files = embedded_files();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const EmbeddedFile& one) { return one.name == name; });
  return found == files.end() ? nullptr : &*found;
}

std::string type_of(std::string_view name) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const auto& one) { return name.ends_with(one.first); });
  return std::string(found == kTypes.end() ? "application/octet-stream" : found->second);
}

}  // namespace

bool contains(std::string_view path) noexcept {
  return file_at(path) != nullptr;
}

std::optional<HttpResponse> respond(const HttpRequest& request) {
  const EmbeddedFile* file = file_at(target_path(request.target));
  if (file == nullptr) {
    return std::nullopt;
  }
  if (request.method != "GET") {
    HttpResponse refused = openai::to_response({405, "the method must be GET"});
    refused.headers.push_back({"allow", "GET"});
    return refused;
  }
  const std::string tag = '"' + std::string(file->digest.substr(0, 32)) + '"';
  HttpResponse response;
  response.headers = {{"etag", tag},
                      {"cache-control", "no-cache"},
                      {"content-security-policy", std::string(kSecurityPolicy)},
                      {"x-content-type-options", "nosniff"},
                      {"referrer-policy", "no-referrer"}};
  if (request.header("if-none-match").value_or("").find(tag) != std::string_view::npos) {
    response.status = 304;
    return response;
  }
  response.headers.push_back({"content-type", type_of(file->name)});
  response.body.assign(reinterpret_cast<const char*>(file->bytes), file->size);
  return response;
}

}  // namespace tidemill::actors::pages
