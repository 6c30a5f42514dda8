// SPDX-License-Identifier: Apache-2.0
// Compiles and runs patterns with PCRE2.
#include "engines/tokenizer/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <cstdint>
#include <pcre2.h>
#include <utility>

#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxPatternBytes = std::size_t{1} << 14;
// Limits for one match: backtracking steps, and the memory for them in KiB. A greedy repetition
// that gives back a long run takes a step for each character, so long subjects have more steps.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::size_t kStepsPerByte = 4;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;

// clang-format off
struct CodeDeleter { void operator()(pcre2_code* p) const { pcre2_code_free(p); } };
struct CompileContextDeleter { void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); } };
struct MatchContextDeleter { void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); } };
struct MatchDataDeleter { void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); } };
// clang-format on

PCRE2_SPTR as_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, CodeDeleter> code;
};

struct Regex::Workspace::State {
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context;
};

Regex::Workspace::Workspace(std::unique_ptr<State> state) : state_(std::move(state)) {}
Regex::Workspace::Workspace(Workspace&&) noexcept = default;
Regex::Workspace& Regex::Workspace::operator=(Workspace&&) noexcept = default;
Regex::Workspace::~Workspace() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return invalid_argument("regular expression: longer than " + std::to_string(kMaxPatternBytes) +
                            " bytes");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string translated, translate_regex(pattern));
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  TIDEMILL_CHECK(context != nullptr) << "out of memory";
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  // Multi-line, because ^ and $ always match at line boundaries in Ruby's syntax.
  compiled->code.reset(pcre2_compile(as_units(translated), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset,
                                     context.get()));
  if (compiled->code == nullptr) {
    return invalid_argument("regular expression: " + pcre2_message(error) + " (offset " +
                            std::to_string(offset) + " of " + quote(translated) + ")");
  }
  // If the JIT is unavailable, the interpreter finds the same matches.
  (void)pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

Regex::Workspace Regex::make_workspace() const {
  auto state = std::make_unique<Workspace::State>();
  state->data.reset(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  state->context.reset(pcre2_match_context_create(nullptr));
  TIDEMILL_CHECK(state->data != nullptr && state->context != nullptr) << "out of memory";
  pcre2_set_heap_limit(state->context.get(), kHeapLimitKib);
  return Workspace(std::move(state));
}

Result<std::optional<Regex::Match>> Regex::find(std::string_view subject, std::size_t from,
                                                Workspace& workspace) const {
  const std::size_t limit = kMatchLimit + kStepsPerByte * subject.size();
  pcre2_set_match_limit(workspace.state_->context.get(),
                        static_cast<std::uint32_t>(std::min<std::size_t>(limit, UINT32_MAX)));
  const auto match = [&](std::uint32_t options) {
    // Without NO_UTF_CHECK every call would validate the whole subject.
    return pcre2_match(compiled_->code.get(), as_units(subject), subject.size(), from,
                       options | PCRE2_NO_UTF_CHECK, workspace.state_->data.get(),
                       workspace.state_->context.get());
  };
  int rc = match(0);
  // The JIT has only 32 KiB for backtracking. The interpreter may use memory up to the heap limit.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = match(PCRE2_NO_JIT);
  }
  if (rc == PCRE2_ERROR_NOMATCH) {
    return std::optional<Match>();
  }
  if (rc < 0) {
    return Status(Errc::kResourceExhausted,
                  "regular expression: " + pcre2_message(rc) + " at byte " + std::to_string(from));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(workspace.state_->data.get());
  return std::optional<Match>(Match{bounds[0], bounds[1]});
}

}  // namespace tidemill::engines
