// SPDX-License-Identifier: Apache-2.0
// Validates option values. A bad value is refused with one line that names the option and says
// which values it accepts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class Option;
}  // namespace CLI

namespace tidemill::launcher {

/// The integers that an option accepts.
struct IntegerRange {
  std::uint64_t min = 0;
  std::uint64_t max = 0;
};

/// The numbers that an option accepts.
struct NumberRange {
  float min = 0.0F;
  bool min_excluded = false;
  std::optional<float> max = std::nullopt;  // none: any finite number
};

/// Restricts `option` to decimal integers in `range`.
void accept_integers(CLI::Option& option, IntegerRange range);
/// Restricts `option` to finite decimal numbers in `range`.
void accept_numbers(CLI::Option& option, NumberRange range);
/// Restricts `option` to `names`. Help shows them as its type, "a|b|c".
void accept_names(CLI::Option& option, std::vector<std::string> names);

/// Logs a warning if `--threads` asks for more threads than the process can keep busy.
void warn_of_threads(int threads, Log& log);

}  // namespace tidemill::launcher
