// SPDX-License-Identifier: Apache-2.0
// The rule of kRegex. This is the only file of this folder that calls PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <cstdint>
#include <pcre2.h>

#include "engines/reward/rules.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kMaxPatternBytes = std::size_t{64} * 1024;
constexpr const char* kAnswerGroup = "answer";

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, Free>;
using MatchData = std::unique_ptr<pcre2_match_data, Free>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free>;

PCRE2_SPTR units(const char* text) {
  return reinterpret_cast<PCRE2_SPTR>(text);
}

std::string pcre2_error_text(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

class RegexRule final : public RewardRule {
public:
  RegexRule(Code code, MatchData data, MatchContext context)
      : code_(std::move(code)), data_(std::move(data)), context_(std::move(context)) {
    const int number = pcre2_substring_number_from_name(code_.get(), units(kAnswerGroup));
    has_answer_group_ = number > 0 || number == PCRE2_ERROR_NOUNIQUESUBSTRING;
  }

  Result<double> score(const RewardRequest& request) override {
    const std::string_view reference = trim(request.reference_answer);
    if (has_answer_group_ && reference.empty()) {
      return invalid_argument(
          "the row has no reference answer (key `answer`) for the group `answer` of the pattern");
    }
    const int matched = pcre2_match(code_.get(), units(request.response.data()),
                                    request.response.size(), 0, 0, data_.get(), context_.get());
    if (matched == PCRE2_ERROR_NOMATCH) {
      return 0.0;
    }
    if (matched < 0) {
      return invalid_argument("the pattern cannot be matched: " + pcre2_error_text(matched));
    }
    return !has_answer_group_ || capture_equals(reference) ? 1.0 : 0.0;
  }

private:
  bool capture_equals(std::string_view reference) const {
    PCRE2_UCHAR* text = nullptr;
    PCRE2_SIZE size = 0;
    if (pcre2_substring_get_byname(data_.get(), units(kAnswerGroup), &text, &size) != 0) {
      return false;  // the group did not participate in the match
    }
    const bool equal = trim({reinterpret_cast<const char*>(text), size}) == reference;
    pcre2_substring_free(text);
    return equal;
  }

  Code code_;
  MatchData data_;
  MatchContext context_;
  bool has_answer_group_ = false;
};

}  // namespace

Result<std::unique_ptr<RewardRule>> make_regex_rule(const std::string& pattern) {
  if (pattern.empty()) {
    return invalid_argument("pattern: is missing");
  }
  if (pattern.size() > kMaxPatternBytes) {
    return invalid_argument("pattern: is longer than 65536 bytes");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  // A model may generate invalid UTF-8. It must fail to match, rather than make scoring fail.
  constexpr std::uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  Code code(
      pcre2_compile(units(pattern.data()), pattern.size(), kOptions, &error, &offset, nullptr));
  if (!code) {
    return invalid_argument("pattern: offset " + std::to_string(offset) + ": " +
                            pcre2_error_text(error));
  }
  MatchData data(pcre2_match_data_create_from_pattern(code.get(), nullptr));
  MatchContext context(pcre2_match_context_create(nullptr));
  if (!data || !context) {
    return Status(Errc::kResourceExhausted, "pattern: out of memory");
  }
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  return std::unique_ptr<RewardRule>(
      std::make_unique<RegexRule>(std::move(code), std::move(data), std::move(context)));
}

}  // namespace tidemill::engines
