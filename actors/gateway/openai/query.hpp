// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. Reads the query of a request.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "actors/gateway/openai/api_error.hpp"

namespace tidemill::actors::openai {

/// The parameters of a query. The first refusal is kept: read all, then check `error`.
class QueryReader {
public:
  /// Refuses parameters that are not in `names`, that occur twice, or whose encoding is broken. A
  /// name such as "metadata[]" in `names` stands for all of the form metadata[NAME].
  QueryReader(std::string_view target, std::initializer_list<std::string_view> names);

  [[nodiscard]] const std::optional<ApiError>& error() const noexcept { return error_; }

  /// Returns the values of the parameters `object`[NAME] by NAME.
  [[nodiscard]] std::map<std::string, std::string> members(const std::string& object) const;
  /// Returns a parameter, or "".
  [[nodiscard]] std::string text(const std::string& name) const;
  /// Returns a whole number from 1 to `max`, or `otherwise` if it is absent.
  [[nodiscard]] std::uint32_t limit(const std::string& name, std::uint32_t otherwise,
                                    std::uint32_t max);
  /// Refuses a parameter.
  void refuse(const std::string& name, const std::string& problem);

private:
  std::map<std::string, std::string> values_;
  std::optional<ApiError> error_;
};

}  // namespace tidemill::actors::openai
