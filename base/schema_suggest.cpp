// SPDX-License-Identifier: Apache-2.0
#include "base/schema_suggest.hpp"

#include <algorithm>
#include <cstddef>

namespace tidemill::schema {
namespace {

constexpr std::size_t kMaxLength = 60;

// Optimal string alignment distance: Damerau-Levenshtein without editing a pair twice.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1,
                         last[j - 1] + static_cast<std::size_t>(a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string closest_name(std::string_view text, const std::vector<std::string>& candidates) {
  if (text.size() > kMaxLength) {
    return {};
  }
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(text, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string clipped(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxLength)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20U || byte == 0x7FU ? '?' : c;
  }
  // A cut in the middle of a UTF-8 character would leave a broken one.
  if (text.size() > kMaxLength) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0U) == 0x80U) {
      out.pop_back();
    }
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xC0U) {
      out.pop_back();
    }
    out += "...";
  }
  return out;
}

}  // namespace tidemill::schema
