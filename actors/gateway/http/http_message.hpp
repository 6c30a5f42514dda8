// SPDX-License-Identifier: Apache-2.0
// HTTP requests and responses as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemill::actors {

/// Names one request and its response. Ids are not used again while the server lives.
using ExchangeId = std::uint64_t;

/// A header field.
struct HttpHeader {
  std::string name;  // in lower case
  std::string value;
};

/// A complete request. Its syntax, and the sizes of header and body, have been checked.
struct HttpRequest {
  ExchangeId exchange = 0;
  std::string method;  // "GET"
  std::string target;  // as sent: path and query
  std::vector<HttpHeader> headers;
  std::string body;

  /// Returns the value of the first header `name`, or nullopt. `name` is in lower case.
  [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
  /// Returns the number of headers `name`.
  [[nodiscard]] std::size_t count_headers(std::string_view name) const;
};

/// A response without the headers that the server adds: length or encoding of the body, connection.
struct HttpResponse {
  std::uint32_t status = 200;
  std::vector<HttpHeader> headers;
  std::string body;
};

/// Returns the parameters in the query of a target in their order, with %XX and + decoded, or
/// nullopt if an encoding is broken.
[[nodiscard]] std::optional<std::vector<std::pair<std::string, std::string>>> query_parameters(
    std::string_view target);

/// Returns the value of the parameter `name` in the query of a target, with %XX and + decoded, or
/// nullopt if there is none or its encoding is broken.
[[nodiscard]] std::optional<std::string> query_parameter(std::string_view target,
                                                         std::string_view name);

/// Returns a part of a path with %XX decoded, or nullopt if its encoding is broken.
[[nodiscard]] std::optional<std::string> decode_path(std::string_view text);

/// Returns `text` with the letters A to Z in lower case.
[[nodiscard]] std::string lower_case(std::string_view text);

/// Returns the path of a target: what precedes the query.
[[nodiscard]] std::string_view target_path(std::string_view target);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, HttpHeader& x) {
  return f(x.name, x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, HttpRequest& x) {
  return f(x.exchange, x.method, x.target, x.headers, x.body);
}

}  // namespace tidemill::actors
