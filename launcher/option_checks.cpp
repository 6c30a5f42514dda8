// SPDX-License-Identifier: Apache-2.0
#include "launcher/option_checks.hpp"

#include <CLI/Option.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <string_view>

#include "base/text/quote.hpp"
#include "engines/runtime/runtime_options.hpp"

namespace tidemill::launcher {
namespace {

// Parses all of `text` as a T. Returns nothing if it is not one or does not fit.
template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

// Makes `option` refuse values that do not fit. The parser prints the option's name before the
// message that a check returns; an empty message means that the value is valid.
void add_check(CLI::Option& option, std::string what,
               std::function<bool(const std::string&)> fits) {
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

void accept_integers(CLI::Option& option, IntegerRange range) {
  add_check(option,
            "an integer from " + std::to_string(range.min) + " to " + std::to_string(range.max),
            [range](const std::string& text) {
              const auto value = parsed<std::uint64_t>(text);
              return value.has_value() && *value >= range.min && *value <= range.max;
            });
}

void accept_numbers(CLI::Option& option, NumberRange range) {
  std::string what = std::string("a number, ") + (range.min_excluded ? "above " : "at least ") +
                     shortest(range.min);
  if (range.max.has_value()) {
    what += " and at most " + shortest(*range.max);
  }
  add_check(option, std::move(what), [range](const std::string& text) {
    const auto value = parsed<float>(text);
    return value.has_value() && std::isfinite(*value) && *value >= range.min &&
           !(range.min_excluded && *value == range.min) &&
           (!range.max.has_value() || *value <= *range.max);
  });
}

void accept_names(CLI::Option& option, std::vector<std::string> names) {
  std::string what = "one of ";
  std::string type;
  for (const std::string& name : names) {
    what += (name == names.front() ? "" : ", ") + name;
    type += (name == names.front() ? "" : "|") + name;
  }
  option.type_name(type);
  add_check(option, std::move(what), [names = std::move(names)](const std::string& text) {
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
