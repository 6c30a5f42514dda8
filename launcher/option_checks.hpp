// SPDX-License-Identifier: Apache-2.0
// What an option takes: a bad value is refused in one line that names the option and says it.
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

struct IntegerRange {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

struct NumberRange {
  float least = 0.0F;
  bool least_excluded = false;
  std::optional<float> most = std::nullopt;  // none: any finite number
};

/// Lets `option` take decimal integers of `range` only.
void take_integers(CLI::Option& option, IntegerRange range);
/// Lets `option` take finite decimal numbers of `range` only.
void take_numbers(CLI::Option& option, NumberRange range);
/// Lets `option` take one of `names` only; help shows them as its type, "a|b|c".
void take_names(CLI::Option& option, std::vector<std::string> names);

/// Warns, in one line, of more `--threads` than the process can keep busy.
void warn_of_threads(int threads, Log& log);

}  // namespace tidemill::launcher
