// SPDX-License-Identifier: Apache-2.0
// UTF-8 by the table of well-formed byte sequences.
#include "base/text/utf8.hpp"

#include <algorithm>

namespace tidemill {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What may follow a first byte: the number of continuation bytes and the range of the first one.
struct LeadRule {
  std::size_t num_continuations = 0;  // 0: not a first byte of a longer sequence
  unsigned first_low = 0x80;
  unsigned first_high = 0xBF;
};

LeadRule lead_rule(unsigned lead) noexcept {
  if (lead >= 0xC2 && lead <= 0xDF) {
    return {1};
  }
  if (lead == 0xE0) {
    return {2, 0xA0, 0xBF};
  }
  if (lead == 0xED) {
    return {2, 0x80, 0x9F};  // the rest would be surrogates
  }
  if (lead >= 0xE1 && lead <= 0xEF) {
    return {2};
  }
  if (lead == 0xF0) {
    return {3, 0x90, 0xBF};
  }
  if (lead == 0xF4) {
    return {3, 0x80, 0x8F};
  }
  if (lead >= 0xF1 && lead <= 0xF3) {
    return {3};
  }
  return {};
}

}  // namespace

Utf8Step read_utf8(std::string_view bytes, std::size_t offset) noexcept {
  const auto byte_at = [bytes](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(bytes[i]));
  };
  const unsigned lead = byte_at(offset);
  if (lead < 0x80) {
    return {Utf8Step::Kind::kCharacter, 1, lead};
  }
  const LeadRule rule = lead_rule(lead);
  if (rule.num_continuations == 0) {
    return {Utf8Step::Kind::kInvalid, 1, 0};
  }
  char32_t code_point = lead & (0x3FU >> rule.num_continuations);
  for (std::size_t i = 1; i <= rule.num_continuations; ++i) {
    if (offset + i == bytes.size()) {
      return {Utf8Step::Kind::kUnfinished, i, 0};
    }
    const unsigned byte = byte_at(offset + i);
    const unsigned low = i == 1 ? rule.first_low : 0x80;
    const unsigned high = i == 1 ? rule.first_high : 0xBF;
    if (byte < low || byte > high) {
      return {Utf8Step::Kind::kInvalid, i, 0};
    }
    code_point = (code_point << 6U) | (byte & 0x3FU);
  }
  return {Utf8Step::Kind::kCharacter, rule.num_continuations + 1, code_point};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view bytes) noexcept {
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = read_utf8(bytes, i);
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return i;
    }
    i += step.length;
  }
  return std::nullopt;
}

std::size_t count_code_points(std::string_view text) noexcept {
  std::size_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6U));
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | (code_point >> 12U));
    put(0x80U | ((code_point >> 6U) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | (code_point >> 18U));
    put(0x80U | ((code_point >> 12U) & 0x3FU));
    put(0x80U | ((code_point >> 6U) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

std::size_t append_repaired_utf8(std::string_view bytes, std::string& out) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = read_utf8(bytes, i);
    if (step.kind == Utf8Step::Kind::kUnfinished) {
      return i;
    }
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out.append(bytes.substr(i, step.length));
    } else {
      out.append(kReplacement);
    }
    i += step.length;
  }
  return i;
}

bool is_white_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool has_control(std::string_view text) noexcept {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char byte) { return byte < 0x20U || byte == 0x7FU; });
}

}  // namespace tidemill
