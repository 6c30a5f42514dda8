// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/module_pattern.hpp"

#include <array>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.hpp"
#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::uint32_t kMatchLimit = 200'000;  // backtracking steps
constexpr std::uint32_t kDepthLimit = 10'000;   // nested backtracking points
constexpr std::uint32_t kHeapLimitKib = 16 * 1024;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

// Returns one more than the number of groups that are set, or 0 if the pattern does not match.
Result<int> run(const pcre2_code* code, std::string_view path, std::uint32_t options,
                pcre2_match_data* data) {
  const MatchContext context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  TIDEMILL_CHECK(context != nullptr && data != nullptr) << "out of memory";
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const int result = pcre2_match(code, units(path), path.size(), 0, options, data, context.get());
  if (result == PCRE2_ERROR_NOMATCH) {
    return 0;
  }
  if (result < 0) {
    return invalid_argument("the pattern takes too many steps on " + quote(path));
  }
  return result;
}

}  // namespace

Result<ModulePattern> ModulePattern::compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return invalid_argument("a pattern of " + std::to_string(pattern.size()) + " bytes; at most " +
                            std::to_string(kMaxPatternBytes) + " are read");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(units(pattern), pattern.size(),
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C,
                                   &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return invalid_argument("bad pattern " + quote(pattern) + " at offset " +
                            std::to_string(offset) + ": " +
                            reinterpret_cast<const char*>(message.data()));
  }
  return ModulePattern(
      std::shared_ptr<const void>(code, [code](const void* /*same*/) { pcre2_code_free(code); }));
}

Result<bool> ModulePattern::matches_whole(std::string_view path) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData data(pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  TIDEMILL_ASSIGN_OR_RETURN(const int count,
                            run(code, path, PCRE2_ANCHORED | PCRE2_ENDANCHORED, data.get()));
  return count > 0;
}

Result<std::optional<std::string>> ModulePattern::first_group(std::string_view path) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData data(pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  TIDEMILL_ASSIGN_OR_RETURN(const int count, run(code, path, PCRE2_ANCHORED, data.get()));
  if (count < 2) {
    return std::optional<std::string>();
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  if (ends[2] == PCRE2_UNSET) {
    return std::optional<std::string>();
  }
  return std::optional<std::string>(std::string(path.substr(ends[2], ends[3] - ends[2])));
}

}  // namespace tidemill::engines
