// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/api_error.hpp"

#include <utility>

namespace tidemill::actors::openai {
namespace {

const char* error_type(std::uint32_t status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

// Replaces the path that a message begins with, if it does.
void replace_path(const char* text, std::string& message) {
  const std::size_t end = message.find(": ");
  if (end != std::string::npos && message.find('/') < end) {
    message.replace(0, end, text);
  }
}

}  // namespace

Json to_json(const ApiError& error) {
  return Json::Object{{"error", Json::Object{{"message", error.message},
                                             {"type", error_type(error.status)},
                                             {"param", text_or_null(error.param)},
                                             {"code", text_or_null(error.code)}}}};
}

HttpResponse json_response(const Json& body) {
  return {200, {{"content-type", "application/json"}}, body.to_line()};
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response = json_response(to_json(error));
  response.status = error.status;
  return response;
}

ApiError to_api_error(const Status& status) {
  switch (status.code()) {
    case Errc::kInvalidArgument:
    case Errc::kCorruptData:
    case Errc::kResourceExhausted:
    case Errc::kUnimplemented: return {400, status.message()};
    case Errc::kNotFound: return {404, status.message()};
    case Errc::kUnavailable: return {503, status.message()};
    case Errc::kTimeout: return {504, status.message()};
    default: return {500, status.message()};
  }
}

ApiError to_storage_error(const Status& status) {
  ApiError error = to_api_error(status);
  if (status.code() == Errc::kCorruptData) {
    error.status = 500;
    replace_path("a file of the server is damaged", error.message);
  } else if (status.code() == Errc::kResourceExhausted) {
    error.status = 507;
    error.code = "insufficient_storage";
    replace_path("the server has no room to store this", error.message);
  }
  return error;
}

ApiError not_json(const Status& why) {
  return {400, "the body is not valid JSON: " + why.message()};
}

}  // namespace tidemill::actors::openai
