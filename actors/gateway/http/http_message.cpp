// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/http/http_message.hpp"

#include <algorithm>

namespace tidemill::actors {
namespace {

// Returns the value of a hexadecimal digit, or -1.
int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Decodes %XX and, in a query, + for a space.
std::optional<std::string> decode(std::string_view text, bool in_query) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && in_query) {
      decoded += ' ';
    } else if (text[i] != '%') {
      decoded += text[i];
    } else {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return std::nullopt;
      }
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return decoded;
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(),
                                  [&](const HttpHeader& one) { return one.name == name; });
  return found == headers.end() ? std::nullopt : std::optional<std::string_view>(found->value);
}

std::size_t HttpRequest::count_headers(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(
      headers.begin(), headers.end(), [&](const HttpHeader& one) { return one.name == name; }));
}

std::optional<std::string> decode_path(std::string_view text) {
  return decode(text, false);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

std::string_view target_path(std::string_view target) {
  return target.substr(0, target.find('?'));
}

std::optional<std::vector<std::pair<std::string, std::string>>> query_parameters(
    std::string_view target) {
  std::vector<std::pair<std::string, std::string>> parameters;
  const std::size_t start = target.find('?');
  std::string_view rest = start == std::string_view::npos ? "" : target.substr(start + 1);
  while (!rest.empty()) {
    const std::size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (pair.empty()) {
      continue;
    }
    const std::size_t equals = pair.find('=');
    auto name = decode(pair.substr(0, equals), true);
    auto value = decode(equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
    if (!name.has_value() || !value.has_value()) {
      return std::nullopt;
    }
    parameters.emplace_back(std::move(*name), std::move(*value));
  }
  return parameters;
}

std::optional<std::string> query_parameter(std::string_view target, std::string_view name) {
  const std::size_t start = target.find('?');
  std::string_view rest = start == std::string_view::npos ? "" : target.substr(start + 1);
  while (!rest.empty()) {
    const std::size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    const std::size_t equals = pair.find('=');
    if (pair.substr(0, equals) == name) {
      return decode(equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
    }
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return std::nullopt;
}

}  // namespace tidemill::actors
