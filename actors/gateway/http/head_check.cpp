// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/http/head_check.hpp"

#include <algorithm>

namespace tidemill::actors {

std::optional<HeadProblem> find_head_problem(const HttpRequest& head, unsigned version,
                                             std::size_t max_headers) {
  if (head.headers.size() > max_headers) {
    return HeadProblem{431, "too many headers"};
  }
  const std::size_t hosts = head.count_headers("host");
  if (hosts > 1 || (version >= 11 && hosts == 0)) {
    return HeadProblem{400, "a request needs one Host header"};
  }
  if (head.count_headers("content-length") + head.count_headers("transfer-encoding") > 1) {
    return HeadProblem{400, "Content-Length and Transfer-Encoding exclude each other"};
  }
  // The parser accepts lists of equal lengths.
  const auto length = head.header("content-length");
  if (length &&
      !std::all_of(length->begin(), length->end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return HeadProblem{400, "Content-Length must be a decimal number"};
  }
  const auto encoding = head.header("transfer-encoding");
  if (encoding && (version < 11 || lower_case(*encoding) != "chunked")) {
    return HeadProblem{400, "the only transfer encoding is chunked, in HTTP/1.1"};
  }
  const auto expectation = head.header("expect");
  if (expectation && lower_case(*expectation) != "100-continue") {
    return HeadProblem{417, "the only expectation is 100-continue"};
  }
  return std::nullopt;
}

}  // namespace tidemill::actors
