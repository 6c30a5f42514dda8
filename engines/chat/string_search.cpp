// SPDX-License-Identifier: Apache-2.0
// Searches with memmem, which takes linear time in the worst case.
#include "engines/chat/string_search.hpp"

#include <algorithm>
#include <string.h>  // memmem

#include "base/text/utf8.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

// Returns the offsets of all non-overlapping occurrences of `part`, searching from the left.
std::vector<std::size_t> find_all(std::string_view text, std::string_view part) {
  std::vector<std::size_t> positions;
  for (std::size_t at = find_text(text, part, 0); at != kNone;
       at = find_text(text, part, at + part.size())) {
    positions.push_back(at);
  }
  return positions;
}

// Returns the offsets of all non-overlapping occurrences of `part`, searching from the right. The
// result differs from `find_all` if occurrences overlap.
std::vector<std::size_t> find_all_from_right(std::string_view text, std::string_view part) {
  const std::string mirrored(text.rbegin(), text.rend());
  const std::string mirrored_part(part.rbegin(), part.rend());
  std::vector<std::size_t> positions = find_all(mirrored, mirrored_part);
  for (std::size_t& position : positions) {
    position = text.size() - position - part.size();
  }
  return positions;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) {
    return kNone;
  }
  if (part.empty()) {
    return from;
  }
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? kNone
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last_text(std::string_view text, std::string_view part) {
  if (part.empty()) {
    return text.size();
  }
  const std::string mirrored(text.rbegin(), text.rend());
  const std::string mirrored_part(part.rbegin(), part.rend());
  const std::size_t at = find_text(mirrored, mirrored_part, 0);
  return at == kNone ? kNone : text.size() - at - part.size();
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max, SearchFrom direction) {
  std::vector<std::size_t> positions = direction == SearchFrom::kLeft
                                           ? find_all(text, separator)
                                           : find_all_from_right(text, separator);
  if (max >= 0 && positions.size() > static_cast<std::size_t>(max)) {
    positions.resize(static_cast<std::size_t>(max));
  }
  if (direction == SearchFrom::kRight) {
    std::reverse(positions.begin(), positions.end());
  }
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (const std::size_t position : positions) {
    parts.push_back(text.substr(begin, position - begin));
    begin = position + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max,
                                             SearchFrom direction) {
  // Splits at all white space first. Then the words beyond the limit are joined again, together
  // with the white space between them.
  std::vector<std::string_view> words;
  std::size_t begin = kNone;
  for (std::size_t i = 0; i <= text.size();) {
    const bool at_end = i == text.size();
    const Utf8Step step = at_end ? Utf8Step{} : read_utf8(text, i);
    if (at_end || is_space(step.code_point)) {
      if (begin != kNone) {
        words.push_back(text.substr(begin, i - begin));
      }
      begin = kNone;
    } else if (begin == kNone) {
      begin = i;
    }
    i += at_end ? 1 : step.length;
  }
  // The last part keeps the white space at its far end, even if it is a single word.
  if (max < 0 || words.size() <= static_cast<std::size_t>(max)) {
    return words;
  }
  const auto keep = static_cast<std::size_t>(max);
  const auto offset_of = [&text](std::string_view word) {
    return static_cast<std::size_t>(word.data() - text.data());
  };
  if (direction == SearchFrom::kLeft) {
    const std::size_t rest = offset_of(words[keep]);
    words.resize(keep);
    words.push_back(strip(text.substr(rest), StripEnds::kLeft));
    return words;
  }
  const std::string_view last_joined = words[words.size() - keep - 1];
  const std::size_t end = offset_of(last_joined) + last_joined.size();
  std::vector<std::string_view> parts = {strip(text.substr(0, end), StripEnds::kRight)};
  parts.insert(parts.end(), words.end() - static_cast<std::ptrdiff_t>(keep), words.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const std::size_t at = i;
    i += step.length;
    if (!is_line_end(step.code_point)) {
      continue;
    }
    if (step.code_point == U'\r' && i < text.size() && text[i] == '\n') {
      ++i;
    }
    lines.push_back(text.substr(begin, (keep_ends ? i : at) - begin));
    begin = i;
  }
  if (begin < text.size()) {
    lines.push_back(text.substr(begin));
  }
  return lines;
}

std::string replace_all(Budget& budget, std::string_view text, std::string_view part,
                        std::string_view replacement, std::int64_t max) {
  budget.allocate(text.size());
  std::string out;
  std::size_t done = 0;
  std::size_t at = find_text(text, part, 0);
  for (std::int64_t i = 0; at != kNone && (max < 0 || i < max); ++i) {
    budget.allocate(replacement.size());
    out.append(text.substr(done, at - done)).append(replacement);
    done = at + part.size();
    // The next occurrence of an empty part is one character further.
    std::size_t from = done;
    if (part.empty()) {
      if (at == text.size()) {
        break;
      }
      from += read_utf8(text, at).length;
    }
    at = find_text(text, part, from);
  }
  out.append(text.substr(done));
  return out;
}

}  // namespace tidemill::engines::chat
