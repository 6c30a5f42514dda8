// SPDX-License-Identifier: Apache-2.0
// Unicode normalization with utf8proc. No other file calls its normalizer.
#include "engines/tokenizer/normalize.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utf8proc.h>

#include "base/text/utf8.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxMarks = 1024;

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Halfwidth sound marks are no combining marks, but their compatibility mappings are.
bool becomes_mark(char32_t code_point, NormalizationForm form) {
  return (code_point == 0xFF9E || code_point == 0xFF9F) &&
         (form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd);
}

Status check_mark_runs(std::string_view text, NormalizationForm form) {
  std::size_t run = 0;
  std::size_t run_begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(step.code_point));
    if (property->combining_class == 0 && !becomes_mark(step.code_point, form)) {
      run = 0;
    } else if (run++ == 0) {
      run_begin = i;
    } else if (run > kMaxMarks) {
      return invalid_argument("more than " + std::to_string(kMaxMarks) +
                              " combining marks in a row at byte " + std::to_string(run_begin));
    }
    i += step.length;
  }
  return {};
}

struct Free {
  void operator()(utf8proc_uint8_t* p) const {
    std::free(p);
  }  // NOLINT: utf8proc allocates with malloc
};

utf8proc_option_t options_of(NormalizationForm form) {
  const bool composes = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const bool maps = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const int flags = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                    (maps ? UTF8PROC_COMPAT : 0);
  return static_cast<utf8proc_option_t>(flags);  // NOLINT: a set of flags
}

Result<std::string> mapped(std::string_view text, NormalizationForm form) {
  if (is_ascii(text)) {
    return std::string(text);
  }
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &bytes, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(bytes);
  if (length < 0) {
    return Status(Errc::kInternal, std::string("normalization: ") + utf8proc_errmsg(length));
  }
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

// Returns the end of the grapheme cluster that begins at `begin`.
std::size_t cluster_end(std::string_view text, std::size_t begin) {
  utf8proc_int32_t state = 0;
  Utf8Step previous = read_utf8(text, begin);
  std::size_t i = begin + previous.length;
  while (i < text.size()) {
    const Utf8Step next = read_utf8(text, i);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous.code_point),
                                         static_cast<utf8proc_int32_t>(next.code_point), &state)) {
      return i;
    }
    previous = next;
    i += next.length;
  }
  return i;
}

// Normalizes a part of a text that was normalized as a whole, so it cannot fail.
std::string mapped_part(std::string_view part, NormalizationForm form) {
  Result<std::string> result = mapped(part, form);
  TIDEMILL_CHECK(result.ok()) << result.status().to_string();
  return std::move(result).value();
}

}  // namespace

Result<std::string> normalize_unicode(std::string_view text, NormalizationForm form) {
  if (!is_ascii(text)) {
    TIDEMILL_RETURN_IF_ERROR(check_mark_runs(text, form));
  }
  return mapped(text, form);
}

std::vector<ByteOrigin> align_normalized(std::string_view text, std::string_view normalized,
                                         NormalizationForm form) {
  std::vector<ByteOrigin> origins;
  origins.reserve(normalized.size());
  const auto at = [](std::size_t offset) { return static_cast<std::uint32_t>(offset); };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = cluster_end(text, i);
    std::string result = mapped_part(text.substr(i, end - i), form);
    // Compatibility mappings may make characters of neighboring clusters combine, such as
    // halfwidth Hangul letters. Nothing combines with ASCII characters.
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) {
      const std::size_t next_end = cluster_end(text, end);
      std::string both = mapped_part(text.substr(i, next_end - i), form);
      if (both == result + mapped_part(text.substr(end, next_end - end), form)) {
        break;
      }
      result = std::move(both);
      end = next_end;
    }
    const bool same = result == text.substr(i, end - i);
    for (std::size_t k = 0; k < result.size(); ++k) {
      origins.push_back(same ? ByteOrigin{at(i + k), at(i + k + 1)} : ByteOrigin{at(i), at(end)});
    }
    i = end;
  }
  // If more clusters combine than the loop detects, this keeps all origins inside the text.
  origins.resize(normalized.size(), ByteOrigin{at(text.size()), at(text.size())});
  return origins;
}

}  // namespace tidemill::engines
