// SPDX-License-Identifier: Apache-2.0
// The errors of OpenAI's API.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "actors/gateway/http/http_message.hpp"
#include "base/json/json.hpp"
#include "base/status.hpp"

namespace tidemill::actors::openai {

/// An error object and the status code of its response.
/// Source: https://platform.openai.com/docs/guides/error-codes, and the `APIError` classes of the
/// openai Python package, which read these four members.
struct ApiError {
  std::uint32_t status = 400;
  std::string message;
  std::string param = {};  // the offending field; empty: null
  std::string code = {};   // empty: null
};

/// A value, or the error to respond with.
template <class T>
using ApiResult = std::variant<T, ApiError>;

/// Returns {"error": {message, type, param, code}}. The type follows from the status code.
[[nodiscard]] Json to_json(const ApiError& error);

/// Returns a response with the error as its body.
[[nodiscard]] HttpResponse to_response(const ApiError& error);

/// Returns a response with a JSON body.
[[nodiscard]] HttpResponse json_response(const Json& body);

/// Returns the error of a failed request: 404 for `kNotFound`, 503 for `kUnavailable`, 504 for
/// `kTimeout`, 500 for `kInternal` and `kStaleVersion`, otherwise 400.
[[nodiscard]] ApiError to_api_error(const Status& status);

/// Returns the error of a request that had to store or read something: 507 for
/// `kResourceExhausted`, with the code `insufficient_storage`; 500 for `kCorruptData`; otherwise as
/// `to_api_error`. Names no path.
[[nodiscard]] ApiError to_storage_error(const Status& status);

/// Returns the error of a body that `parse_json` refused.
[[nodiscard]] ApiError not_json(const Status& why);

}  // namespace tidemill::actors::openai
