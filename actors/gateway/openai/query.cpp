// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/query.hpp"

#include <algorithm>
#include <charconv>

#include "actors/gateway/http/http_message.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::openai {

namespace {

bool matches(std::string_view name, std::string_view known) {
  if (!known.ends_with("[]")) {
    return name == known;
  }
  known.remove_suffix(1);
  return name.starts_with(known) && name.ends_with(']');
}

}  // namespace

QueryReader::QueryReader(std::string_view target, std::initializer_list<std::string_view> names) {
  const auto parameters = query_parameters(target);
  if (!parameters.has_value()) {
    error_ = ApiError{400, "the query of the path has a broken encoding"};
    return;
  }
  for (const auto& [name, value] : *parameters) {
    if (std::none_of(names.begin(), names.end(),
                     [&name = name](std::string_view known) { return matches(name, known); })) {
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

std::map<std::string, std::string> QueryReader::members(const std::string& object) const {
  std::map<std::string, std::string> found;
  for (const auto& [name, value] : values_) {
    if (matches(name, object + "[]")) {
      const std::size_t begin = object.size() + 1;
      found.emplace(name.substr(begin, name.size() - begin - 1), value);
    }
  }
  return found;
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
