// SPDX-License-Identifier: Apache-2.0
// The filters, tests, methods of values, and functions that templates can call by name.
//
// They behave like those of Jinja 3.1 and Python, with these differences:
// - The filter `random` is refused, because rendering must be deterministic.
// - Arguments that count something, such as widths and lengths, must be integers, and undefined
//   values cannot be keys of mappings.
// - A filter or test that does not exist is an error even in a branch that is not taken.
// - Numbers are 64-bit integers and doubles. A result that does not fit is an error.
// - Filters that Jinja runs lazily run immediately, so an error is reported at the filter.
// - `isdigit` accepts decimal digits only, and `isnumeric` only characters of the category N.
// - `encode`, `isidentifier`, `maketrans` and `translate` of strings cannot be called.
// - Printing a value that Python prints with an address, such as a method, is an error.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/budget.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// The state of one rendering that builtins use.
struct Runtime {
  Budget budget;
  std::string now;  // "YYYY-MM-DDTHH:MM:SS", the time for strftime_now; empty: no time
};

using Filter = Value (*)(Runtime& runtime, const Value& input, const Arguments& arguments);
using Test = bool (*)(Runtime& runtime, const Value& input, const Arguments& arguments);

/// Returns the filter or test of this name, or nullptr.
[[nodiscard]] Filter find_filter(std::string_view name);
[[nodiscard]] Test find_test(std::string_view name);

/// Returns the method `name` of `object`, bound to the object, or an undefined value if it has no
/// such method. Also finds the attributes of loops, macros and groups. The result refers to
/// `runtime`.
[[nodiscard]] Value find_method(Runtime& runtime, const Value& object, std::string_view name);

/// Returns the functions that every template can call: range, dict, namespace, raise_exception and
/// strftime_now. They refer to `runtime`.
[[nodiscard]] std::vector<std::pair<std::string, Value>> global_functions(Runtime& runtime);

/// Binds the arguments of one call to its parameters.
///
/// Throws `TemplateError` if there are too many arguments, or if one is given twice or matches no
/// parameter.
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
