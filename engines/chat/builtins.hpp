// SPDX-License-Identifier: Apache-2.0
// What templates can call by name: filters, tests, methods of values, and functions.
//
// They behave as Jinja 3.1's and Python's do, with these differences. Nothing marks text as safe
// HTML, since nothing escapes: `safe` returns its input. Numbers are 64-bit integers and doubles:
// a result that does not fit is an error. Filters that Jinja runs lazily run at once, so that they
// fail where they stand. `isdigit` knows decimal digits only. What Python prints with an address,
// such as a method, is an error.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/budget.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// What a rendering lends to what it calls.
struct Runtime {
  Budget budget;
  std::string now;  // "YYYY-MM-DDTHH:MM:SS", what strftime_now reads; empty: there is no clock
};

using Filter = Value (*)(Runtime& runtime, const Value& input, const Arguments& arguments);
using Test = bool (*)(Runtime& runtime, const Value& input, const Arguments& arguments);

/// Returns the filter or test of this name, or nullptr.
[[nodiscard]] Filter find_filter(std::string_view name);
[[nodiscard]] Test find_test(std::string_view name);

/// Returns the method `name` of `object`, bound to it, or an undefined value if there is none. The
/// result refers to `runtime`.
[[nodiscard]] Value find_method(Runtime& runtime, const Value& object, std::string_view name);

/// Returns the names that every template knows: range, dict, namespace, raise_exception,
/// strftime_now. They refer to `runtime`.
[[nodiscard]] std::vector<std::pair<std::string, Value>> global_functions(Runtime& runtime);

/// The arguments of one call under the names of its parameters.
///
/// Throws `TemplateError` if there are too many, or one comes twice or has no parameter.
class BoundArguments {
public:
  BoundArguments(std::string_view function, const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters);

  /// Returns the argument, or nullptr if it was not given.
  [[nodiscard]] const Value* find(std::size_t parameter) const { return values_[parameter]; }
  /// Returns the argument. Throws if it was not given.
  [[nodiscard]] const Value& require(std::size_t parameter) const;
  [[nodiscard]] bool flag(std::size_t parameter, bool when_absent) const;
  [[nodiscard]] std::int64_t integer(std::size_t parameter, std::int64_t when_absent) const;

private:
  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

}  // namespace tidemill::engines::chat
