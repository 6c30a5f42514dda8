// SPDX-License-Identifier: Apache-2.0
#include "launcher/option_checks.hpp"

#include <CLI/Option.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <string_view>

#include "base/quote.hpp"
#include "engines/runtime/factory.hpp"

namespace tidemill::launcher {
namespace {

// All of `text` as a T; none if it is something else, or too large for one.
template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

// The parser prints the option's name before what a check returns; nothing means that it is fine.
void take(CLI::Option& option, std::string what, std::function<bool(const std::string&)> fits) {
  option.check(
      [what = std::move(what), fits = std::move(fits)](const std::string& text) -> std::string {
        return fits(text) ? "" : "must be " + what + ", not " + quote(text);
      });
}

std::string shortest(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, end};
}

}  // namespace

void take_integers(CLI::Option& option, IntegerRange range) {
  take(option,
       "an integer from " + std::to_string(range.least) + " to " + std::to_string(range.most),
       [range](const std::string& text) {
         const auto value = parsed<std::uint64_t>(text);
         return value.has_value() && *value >= range.least && *value <= range.most;
       });
}

void take_numbers(CLI::Option& option, NumberRange range) {
  std::string what = std::string("a number, ") + (range.least_excluded ? "above " : "at least ") +
                     shortest(range.least);
  if (range.most.has_value()) {
    what += " and at most " + shortest(*range.most);
  }
  take(option, std::move(what), [range](const std::string& text) {
    const auto value = parsed<float>(text);
    return value.has_value() && std::isfinite(*value) && *value >= range.least &&
           !(range.least_excluded && *value == range.least) &&
           (!range.most.has_value() || *value <= *range.most);
  });
}

void take_names(CLI::Option& option, std::vector<std::string> names) {
  std::string what = "one of ";
  std::string type;
  for (const std::string& name : names) {
    what += (name == names.front() ? "" : ", ") + name;
    type += (name == names.front() ? "" : "|") + name;
  }
  option.type_name(type);
  take(option, std::move(what), [names = std::move(names)](const std::string& text) {
    return std::find(names.begin(), names.end(), text) != names.end();
  });
}

void warn_of_threads(int threads, Log& log) {
  const std::string warning = engines::threads_warning(threads);
  if (!warning.empty()) {
    log.warning("--threads: " + warning);
  }
}

}  // namespace tidemill::launcher
