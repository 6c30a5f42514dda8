// SPDX-License-Identifier: Apache-2.0
// Binds arguments, and implements the functions that every template can call.
#include "engines/chat/builtins.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <utility>

#include "engines/chat/operators.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::int64_t kMaxRange = 100'000;

Value range(Runtime& runtime, const Arguments& arguments) {
  std::array<std::int64_t, 3> bounds = {0, 0, 1};
  const List& given = arguments.positional;
  if (given.empty() || given.size() > bounds.size() || !arguments.named.empty()) {
    fail("range expected 1 to 3 arguments");
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    require_defined(given[i]);
    const auto integer = given[i].integer();
    if (!integer) {
      fail("'" + std::string(given[i].type_name()) +
           "' object cannot be interpreted as an integer");
    }
    bounds[i] = *integer;
  }
  if (given.size() == 1) {
    std::swap(bounds[0], bounds[1]);
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) {
    fail("range() arg 3 must not be zero");
  }
  List items;
  std::int64_t i = begin;
  while (step > 0 ? i < end : i > end) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      Budget::exceeded("a range of more than " + std::to_string(kMaxRange) + " items");
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  return make_sequence(runtime, std::move(items));
}

Value dict(Runtime& runtime, const Arguments& arguments) {
  Dict result;
  if (arguments.positional.size() > 1) {
    fail("dict expected at most 1 argument");
  }
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional.front();
    if (from.is_dict()) {
      for (const Dict::Entry& entry : from.as_dict().entries()) {
        insert(runtime, result, entry.key, entry.value);
      }
    } else {
      for (const Value& item : iterate(runtime, from)) {
        const List pair = iterate(runtime, item);
        if (pair.size() != 2) {
          fail("dict needs a sequence of pairs");
        }
        insert(runtime, result, pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    insert(runtime, result, Value(name), value);
  }
  return make_dict(runtime, std::move(result));
}

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
  auto result = std::make_shared<Namespace>();
  const Value initial = dict(runtime, arguments);
  for (const Dict::Entry& entry : initial.as_dict().entries()) {
    if (!entry.key.is_string() || entry.key.as_string().rfind('_', 0) == 0) {
      fail("namespace attributes must be names that do not begin with _");
    }
    if (entry.value.holds_reference()) {
      fail("a namespace cannot hold namespaces, macros or loops");
    }
    result->attributes[entry.key.as_string()] = entry.value;
  }
  return result;
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
  const BoundArguments bound("raise_exception", arguments, {"message"});
  throw TemplateError(TemplateError::Kind::kRaised, text_of(runtime, bound.require(0)));
}

// Parses the time of the request: YYYY-MM-DDTHH:MM:SS. A fraction of a second is ignored.
std::tm parse_clock(const std::string& now) {
  std::tm time{};
  if (now.empty()) {
    fail("strftime_now: the request has no time (now)");
  }
  const int fields = std::sscanf(
      now.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%2d", &time.tm_year,  // NOLINT(cert-err34-c)
      &time.tm_mon, &time.tm_mday, &time.tm_hour, &time.tm_min, &time.tm_sec);
  static constexpr std::array<int, 12> kDays = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const int year = time.tm_year;
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  const auto days_in = [leap](int month) {
    return kDays[static_cast<std::size_t>(month)] + (month == 1 && leap ? 1 : 0);
  };
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  const auto outside = [](int value, int low, int high) { return value < low || value > high; };
  if (fields != 6 || outside(year, 1, 9999) || outside(time.tm_mon, 0, 11) ||
      outside(time.tm_mday, 1, days_in(time.tm_mon)) || outside(time.tm_hour, 0, 23) ||
      outside(time.tm_min, 0, 59) || outside(time.tm_sec, 0, 59)) {
    fail("strftime_now: '" + now.substr(0, 40) + "' is not a time like 2026-01-31T12:00:00");
  }
  time.tm_yday = time.tm_mday - 1;
  for (int month = 0; month < time.tm_mon; ++month) {
    time.tm_yday += days_in(month);
  }
  const int before = year - 1;
  time.tm_wday = (before * 365 + before / 4 - before / 100 + before / 400 + time.tm_yday + 1) % 7;
  return time;
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const BoundArguments bound("strftime_now", arguments, {"format"});
  if (!bound.require(0).is_string()) {
    fail("strftime_now: the format must be a string");
  }
  const std::tm time = parse_clock(runtime.now);
  std::string out;
  std::string_view format = bound.require(0).as_string();
  runtime.budget.scan(format.size());
  while (!format.empty()) {
    const std::size_t percent = std::min(format.find('%'), format.size());
    out.append(format.substr(0, percent));
    format.remove_prefix(percent);
    if (format.size() < 2) {
      out.append(format);
      break;
    }
    // A directive may have glibc's flag "-" for no padding.
    const std::size_t size = format[1] == '-' && format.size() > 2 ? 3 : 2;
    const std::string directive(format.substr(0, size));
    static constexpr std::string_view kKnown = "aAwdbBmyYHIMpSjUWcxXGuVDFTReCgh";
    if (directive == "%%") {
      out.push_back('%');
    } else if (directive == "%f") {
      out.append("000000");
    } else if (directive == "%z" || directive == "%Z") {
      // The time has no zone, so nothing is printed, as for Python's naive times.
    } else if (kKnown.find(directive.back()) != std::string_view::npos) {
      std::array<char, 64> buffer{};
      out.append(buffer.data(),
                 std::strftime(buffer.data(), buffer.size(), directive.c_str(), &time));
    } else {
      fail("strftime_now: the directive " + directive + " is not supported");
    }
    format.remove_prefix(size);
  }
  return make_string(runtime, std::move(out));
}

Value function(Runtime& runtime, std::string name, Value (*body)(Runtime&, const Arguments&)) {
  auto callable = std::make_shared<Callable>();
  callable->name = std::move(name);
  callable->call = [&runtime, body](const Arguments& arguments) {
    return body(runtime, arguments);
  };
  return std::shared_ptr<const Callable>(std::move(callable));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions(Runtime& runtime) {
  std::vector<std::pair<std::string, Value>> functions;
  using Function = Value (*)(Runtime&, const Arguments&);
  for (const auto& [name, body] : {std::pair<const char*, Function>{"range", range},
                                   {"dict", dict},
                                   {"namespace", make_namespace},
                                   {"raise_exception", raise_exception},
                                   {"strftime_now", strftime_now}}) {
    functions.emplace_back(name, function(runtime, name, body));
  }
  return functions;
}

BoundArguments::BoundArguments(std::string_view function, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size()) {
  if (arguments.positional.size() > parameters.size()) {
    fail(function_ + " takes at most " + std::to_string(parameters.size()) + " arguments, got " +
         std::to_string(arguments.positional.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) {
      fail(function_ + " has no argument '" + name + "'");
    }
    const Value*& slot = values_[static_cast<std::size_t>(found - parameters_.begin())];
    if (slot != nullptr) {
      fail(function_ + " got the argument '" + name + "' twice");
    }
    slot = &value;
  }
}

const Value& BoundArguments::require(std::size_t parameter) const {
  if (values_[parameter] == nullptr) {
    fail(function_ + " needs the argument '" + std::string(parameters_[parameter]) + "'");
  }
  return *values_[parameter];
}

bool BoundArguments::flag(std::size_t parameter, bool when_absent) const {
  return values_[parameter] == nullptr ? when_absent : values_[parameter]->truthy();
}

std::int64_t BoundArguments::integer(std::size_t parameter, std::int64_t when_absent) const {
  if (values_[parameter] == nullptr) {
    return when_absent;
  }
  require_defined(*values_[parameter]);
  const auto integer = values_[parameter]->integer();
  if (!integer) {
    fail(function_ + ": '" + std::string(parameters_[parameter]) + "' must be an integer, not " +
         std::string(values_[parameter]->type_name()));
  }
  return *integer;
}

}  // namespace tidemill::engines::chat
