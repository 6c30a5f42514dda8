// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/query.hpp"

#include <algorithm>
#include <charconv>

#include "actors/gateway/http/http_message.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::openai {

QueryReader::QueryReader(std::string_view target, std::initializer_list<std::string_view> names) {
  const auto parameters = query_parameters(target);
  if (!parameters.has_value()) {
    error_ = ApiError{400, "the query of the path has a broken encoding"};
    return;
  }
  for (const auto& [name, value] : *parameters) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      refuse(name, "unknown parameter");
    } else if (!values_.emplace(name, value).second) {
      refuse(name, "occurs twice");
    }
  }
}

void QueryReader::refuse(const std::string& name, const std::string& problem) {
  if (!error_.has_value()) {
    const std::string path = quote_unless_plain(name);
    error_ = ApiError{400, path + ": " + problem, path};
  }
}

std::string QueryReader::text(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

std::uint32_t QueryReader::limit(const std::string& name, std::uint32_t otherwise,
                                 std::uint32_t max) {
  const std::string given = text(name);
  if (!values_.contains(name)) {
    return otherwise;
  }
  std::uint32_t value = 0;
  const auto [end, problem] = std::from_chars(given.data(), given.data() + given.size(), value);
  if (problem != std::errc() || end != given.data() + given.size() || value < 1 || value > max) {
    refuse(name, "must be an integer from 1 to " + std::to_string(max));
    return otherwise;
  }
  return value;
}

}  // namespace tidemill::actors::openai
