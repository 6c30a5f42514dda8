// SPDX-License-Identifier: Apache-2.0
// Case conversion with utf8proc's simple mappings and folding, and a table of full mappings.
#include "engines/chat/unicode.hpp"

#include <algorithm>
#include <array>
#include <utf8proc.h>

#include "base/text/utf8.hpp"

namespace tidemill::engines::chat {
namespace {

// Characters whose upper or title case is more than one character.
// Source: Unicode 14, SpecialCasing.txt, unconditional mappings.
struct FullMapping {
  char32_t code_point;
  std::string_view upper;
  std::string_view title;
};
// clang-format off
constexpr std::array<FullMapping, 102> kFullMappings = {{
    {0x00DF, "SS", "Ss"},
    {0x0149, "\u02BCN", "\u02BCN"},
    {0x01F0, "J\u030C", "J\u030C"},
    {0x0390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x03B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x0587, "\u0535\u0552", "\u0535\u0582"},
    {0x1E96, "H\u0331", "H\u0331"},
    {0x1E97, "T\u0308", "T\u0308"},
    {0x1E98, "W\u030A", "W\u030A"},
    {0x1E99, "Y\u030A", "Y\u030A"},
    {0x1E9A, "A\u02BE", "A\u02BE"},
    {0x1F50, "\u03A5\u0313", "\u03A5\u0313"},
    {0x1F52, "\u03A5\u0313\u0300", "\u03A5\u0313\u0300"},
    {0x1F54, "\u03A5\u0313\u0301", "\u03A5\u0313\u0301"},
    {0x1F56, "\u03A5\u0313\u0342", "\u03A5\u0313\u0342"},
    {0x1F80, "\u1F08\u0399", "\u1F88"},
    {0x1F81, "\u1F09\u0399", "\u1F89"},
    {0x1F82, "\u1F0A\u0399", "\u1F8A"},
    {0x1F83, "\u1F0B\u0399", "\u1F8B"},
    {0x1F84, "\u1F0C\u0399", "\u1F8C"},
    {0x1F85, "\u1F0D\u0399", "\u1F8D"},
    {0x1F86, "\u1F0E\u0399", "\u1F8E"},
    {0x1F87, "\u1F0F\u0399", "\u1F8F"},
    {0x1F88, "\u1F08\u0399", "\u1F88"},
    {0x1F89, "\u1F09\u0399", "\u1F89"},
    {0x1F8A, "\u1F0A\u0399", "\u1F8A"},
    {0x1F8B, "\u1F0B\u0399", "\u1F8B"},
    {0x1F8C, "\u1F0C\u0399", "\u1F8C"},
    {0x1F8D, "\u1F0D\u0399", "\u1F8D"},
    {0x1F8E, "\u1F0E\u0399", "\u1F8E"},
    {0x1F8F, "\u1F0F\u0399", "\u1F8F"},
    {0x1F90, "\u1F28\u0399", "\u1F98"},
    {0x1F91, "\u1F29\u0399", "\u1F99"},
    {0x1F92, "\u1F2A\u0399", "\u1F9A"},
    {0x1F93, "\u1F2B\u0399", "\u1F9B"},
    {0x1F94, "\u1F2C\u0399", "\u1F9C"},
    {0x1F95, "\u1F2D\u0399", "\u1F9D"},
    {0x1F96, "\u1F2E\u0399", "\u1F9E"},
    {0x1F97, "\u1F2F\u0399", "\u1F9F"},
    {0x1F98, "\u1F28\u0399", "\u1F98"},
    {0x1F99, "\u1F29\u0399", "\u1F99"},
    {0x1F9A, "\u1F2A\u0399", "\u1F9A"},
    {0x1F9B, "\u1F2B\u0399", "\u1F9B"},
    {0x1F9C, "\u1F2C\u0399", "\u1F9C"},
    {0x1F9D, "\u1F2D\u0399", "\u1F9D"},
    {0x1F9E, "\u1F2E\u0399", "\u1F9E"},
    {0x1F9F, "\u1F2F\u0399", "\u1F9F"},
    {0x1FA0, "\u1F68\u0399", "\u1FA8"},
    {0x1FA1, "\u1F69\u0399", "\u1FA9"},
    {0x1FA2, "\u1F6A\u0399", "\u1FAA"},
    {0x1FA3, "\u1F6B\u0399", "\u1FAB"},
    {0x1FA4, "\u1F6C\u0399", "\u1FAC"},
    {0x1FA5, "\u1F6D\u0399", "\u1FAD"},
    {0x1FA6, "\u1F6E\u0399", "\u1FAE"},
    {0x1FA7, "\u1F6F\u0399", "\u1FAF"},
    {0x1FA8, "\u1F68\u0399", "\u1FA8"},
    {0x1FA9, "\u1F69\u0399", "\u1FA9"},
    {0x1FAA, "\u1F6A\u0399", "\u1FAA"},
    {0x1FAB, "\u1F6B\u0399", "\u1FAB"},
    {0x1FAC, "\u1F6C\u0399", "\u1FAC"},
    {0x1FAD, "\u1F6D\u0399", "\u1FAD"},
    {0x1FAE, "\u1F6E\u0399", "\u1FAE"},
    {0x1FAF, "\u1F6F\u0399", "\u1FAF"},
    {0x1FB2, "\u1FBA\u0399", "\u1FBA\u0345"},
    {0x1FB3, "\u0391\u0399", "\u1FBC"},
    {0x1FB4, "\u0386\u0399", "\u0386\u0345"},
    {0x1FB6, "\u0391\u0342", "\u0391\u0342"},
    {0x1FB7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
    {0x1FBC, "\u0391\u0399", "\u1FBC"},
    {0x1FC2, "\u1FCA\u0399", "\u1FCA\u0345"},
    {0x1FC3, "\u0397\u0399", "\u1FCC"},
    {0x1FC4, "\u0389\u0399", "\u0389\u0345"},
    {0x1FC6, "\u0397\u0342", "\u0397\u0342"},
    {0x1FC7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
    {0x1FCC, "\u0397\u0399", "\u1FCC"},
    {0x1FD2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
    {0x1FD3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x1FD6, "\u0399\u0342", "\u0399\u0342"},
    {0x1FD7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
    {0x1FE2, "\u03A5\u0308\u0300", "\u03A5\u0308\u0300"},
    {0x1FE3, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x1FE4, "\u03A1\u0313", "\u03A1\u0313"},
    {0x1FE6, "\u03A5\u0342", "\u03A5\u0342"},
    {0x1FE7, "\u03A5\u0308\u0342", "\u03A5\u0308\u0342"},
    {0x1FF2, "\u1FFA\u0399", "\u1FFA\u0345"},
    {0x1FF3, "\u03A9\u0399", "\u1FFC"},
    {0x1FF4, "\u038F\u0399", "\u038F\u0345"},
    {0x1FF6, "\u03A9\u0342", "\u03A9\u0342"},
    {0x1FF7, "\u03A9\u0342\u0399", "\u03A9\u0342\u0345"},
    {0x1FFC, "\u03A9\u0399", "\u1FFC"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
    {0xFB13, "\u0544\u0546", "\u0544\u0576"},
    {0xFB14, "\u0544\u0535", "\u0544\u0565"},
    {0xFB15, "\u0544\u053B", "\u0544\u056B"},
    {0xFB16, "\u054E\u0546", "\u054E\u0576"},
    {0xFB17, "\u0544\u053D", "\u0544\u056D"},
}};
// clang-format on

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kSmallSigma = 0x3C3;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kDottedCapitalI = 0x130;

const FullMapping* full_mapping(char32_t c) {
  const auto* found =
      std::lower_bound(kFullMappings.begin(), kFullMappings.end(), c,
                       [](const FullMapping& m, char32_t value) { return m.code_point < value; });
  return found != kFullMappings.end() && found->code_point == c ? found : nullptr;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

char32_t simple(utf8proc_int32_t (*mapping)(utf8proc_int32_t), char32_t c) {
  return static_cast<char32_t>(mapping(static_cast<utf8proc_int32_t>(c)));
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
  }
  static constexpr std::u32string_view kMarks = U"'.:\u00B7\u2018\u2019\u2024\u2027";
  return kMarks.find(c) != std::u32string_view::npos;
}

std::u32string decode(std::string_view text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    out.push_back(step.code_point);
    i += step.length;
  }
  return out;
}

// Returns whether a sigma is final: a cased letter comes before it and none after it, where
// case-ignorable characters are skipped.
bool is_final_sigma(const std::u32string& text, std::size_t i) {
  std::size_t before = i;
  while (before > 0 && is_case_ignorable(text[before - 1])) {
    --before;
  }
  if (before == 0 || !is_cased(text[before - 1])) {
    return false;
  }
  std::size_t after = i + 1;
  while (after < text.size() && is_case_ignorable(text[after])) {
    ++after;
  }
  return after == text.size() || !is_cased(text[after]);
}

void append_upper(char32_t c, std::string& out) {
  if (const FullMapping* full = full_mapping(c)) {
    out.append(full->upper);
  } else {
    append_utf8(simple(utf8proc_toupper, c), out);
  }
}

void append_title(char32_t c, std::string& out) {
  if (const FullMapping* full = full_mapping(c)) {
    out.append(full->title);
  } else {
    append_utf8(simple(utf8proc_totitle, c), out);
  }
}

void append_lower(const std::u32string& text, std::size_t i, std::string& out) {
  const char32_t c = text[i];
  if (c == kCapitalSigma) {
    append_utf8(is_final_sigma(text, i) ? kFinalSigma : kSmallSigma, out);
  } else if (c == kDottedCapitalI) {
    out.append("i\u0307");
  } else {
    append_utf8(simple(utf8proc_tolower, c), out);
  }
}

template <class InSet>
std::string_view strip_while(std::string_view text, StripEnds ends, const InSet& in_set) {
  while (ends != StripEnds::kRight && !text.empty()) {
    const Utf8Step step = read_utf8(text, 0);
    if (!in_set(step.code_point)) {
      break;
    }
    text.remove_prefix(step.length);
  }
  while (ends != StripEnds::kLeft && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
      --begin;
    }
    if (!in_set(read_utf8(text, begin).code_point)) {
      break;
    }
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace

bool is_space(char32_t c) noexcept {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_printable(char32_t c) noexcept {
  if (c == U' ') {
    return true;
  }
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

bool is_alphabetic(char32_t c) noexcept {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal_digit(char32_t c) noexcept {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_numeric(char32_t c) noexcept {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_word_character(char32_t c) noexcept {
  return is_alphabetic(c) || is_numeric(c) || c == U'_';
}

bool is_upper(char32_t c) noexcept {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool is_lower(char32_t c) noexcept {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool is_title(std::string_view text) noexcept {
  bool after_cased = false;
  bool found = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const bool cased = is_cased(step.code_point);
    if (cased && is_lower(step.code_point) != after_cased) {
      return false;
    }
    found = found || cased;
    after_cased = cased;
    i += step.length;
  }
  return found;
}

std::string to_upper(std::string_view text) {
  std::string out;
  for (const char32_t c : decode(text)) {
    append_upper(c, out);
  }
  return out;
}

std::string to_lower(std::string_view text) {
  const std::u32string characters = decode(text);
  std::string out;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    append_lower(characters, i, out);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  const std::u32string characters = decode(text);
  std::string out;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    if (i == 0) {
      append_title(characters[i], out);
    } else {
      append_lower(characters, i, out);
    }
  }
  return out;
}

std::string to_title(std::string_view text) {
  const std::u32string characters = decode(text);
  std::string out;
  bool inside = false;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    if (inside) {
      append_lower(characters, i, out);
    } else {
      append_title(characters[i], out);
    }
    inside = is_cased(characters[i]);
  }
  return out;
}

std::string fold_case(std::string_view text) {
  std::string out;
  for (const char32_t c : decode(text)) {
    std::array<utf8proc_int32_t, 8> folded{};  // full folding gives at most three characters
    int boundary = UTF8PROC_BOUNDCLASS_START;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded.data(),
                                               std::ssize(folded), UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      append_utf8(static_cast<char32_t>(folded[static_cast<std::size_t>(i)]), out);
    }
  }
  return out;
}

std::string swap_case(std::string_view text) {
  const std::u32string characters = decode(text);
  std::string out;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    if (is_lower(characters[i])) {
      append_upper(characters[i], out);
    } else {
      append_lower(characters, i, out);
    }
  }
  return out;
}

std::string_view strip(std::string_view text, StripEnds ends) {
  return strip_while(text, ends, is_space);
}

std::string_view strip(std::string_view text, std::string_view characters, StripEnds ends) {
  const std::u32string set = decode(characters);
  return strip_while(text, ends,
                     [&set](char32_t c) { return set.find(c) != std::u32string::npos; });
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = read_utf8(text, i).length;
    out.push_back(text.substr(i, length));
    i += length;
  }
  return out;
}

std::size_t byte_offset(std::string_view text, std::size_t code_point) noexcept {
  std::size_t i = 0;
  for (; i < text.size() && code_point > 0; --code_point) {
    i += read_utf8(text, i).length;
  }
  return i;
}

}  // namespace tidemill::engines::chat
