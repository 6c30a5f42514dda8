// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/grammar_builder.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "engines/constraint/determinizer.hpp"

namespace tidemill::engines {
namespace {

struct Utf8Bytes {
  std::array<std::uint8_t, 4> bytes{};
  std::size_t count = 0;
};

Utf8Bytes utf8_of(char32_t c) {
  const auto low = [&](unsigned shift) {
    return static_cast<std::uint8_t>(0x80U | ((c >> shift) & 0x3FU));
  };
  if (c < 0x80) {
    return {{static_cast<std::uint8_t>(c)}, 1};
  }
  if (c < 0x800) {
    return {{static_cast<std::uint8_t>(0xC0U | (c >> 6U)), low(0)}, 2};
  }
  if (c < 0x10000) {
    return {{static_cast<std::uint8_t>(0xE0U | (c >> 12U)), low(6), low(0)}, 3};
  }
  return {{static_cast<std::uint8_t>(0xF0U | (c >> 18U)), low(12), low(6), low(0)}, 4};
}

}  // namespace

std::int32_t GrammarBuilder::add_state() {
  if (static_cast<std::int32_t>(states_.size()) >= limits_.max_nfa_states) {
    full_ = true;
    return static_cast<std::int32_t>(states_.size()) - 1;
  }
  states_.emplace_back();
  return static_cast<std::int32_t>(states_.size()) - 1;
}

void GrammarBuilder::add_edge(std::int32_t from, std::int32_t to) {
  if (!full_) {
    states_[static_cast<std::size_t>(from)].empty.push_back(to);
  }
}

void GrammarBuilder::add_bytes(std::int32_t from, std::uint8_t first, std::uint8_t last,
                               std::int32_t to) {
  if (!full_) {
    states_[static_cast<std::size_t>(from)].bytes.push_back({first, last, to});
  }
}

void GrammarBuilder::add_veto(std::int32_t state, std::int32_t vetoed) {
  states_[static_cast<std::size_t>(state)].vetoed = vetoed;
}

Fragment GrammarBuilder::never() {
  const std::int32_t start = add_state();
  return {start, add_state()};
}

Fragment GrammarBuilder::empty() {
  const std::int32_t state = add_state();
  return {state, state};
}

Fragment GrammarBuilder::text(std::string_view bytes) {
  Fragment out = empty();
  for (const char c : bytes) {
    const std::int32_t next = add_state();
    add_bytes(out.end, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
    out.end = next;
  }
  return out;
}

Fragment GrammarBuilder::byte_range(std::uint8_t first, std::uint8_t last) {
  const Fragment out = never();
  add_bytes(out.start, first, last, out.end);
  return out;
}

Fragment GrammarBuilder::call(RuleId rule) {
  const Fragment out = never();
  if (!full_) {
    states_[static_cast<std::size_t>(out.start)].calls.push_back({rule, out.end});
  }
  return out;
}

// Adds the UTF-8 of a range of code points that all have the same number of bytes. The range is cut
// where the bytes after the first different one do not cover all values.
void GrammarBuilder::add_utf8_range(std::int32_t from, char32_t first, char32_t last,
                                    std::int32_t to) {
  const Utf8Bytes low = utf8_of(first);
  const Utf8Bytes high = utf8_of(last);
  for (std::size_t i = 1; i < low.count; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) {
      continue;
    }
    if ((first & mask) != 0) {
      add_utf8_range(from, first, first | mask, to);
      add_utf8_range(from, (first | mask) + 1, last, to);
      return;
    }
    if ((last & mask) != mask) {
      add_utf8_range(from, first, (last & ~mask) - 1, to);
      add_utf8_range(from, last & ~mask, last, to);
      return;
    }
  }
  std::int32_t at = from;
  for (std::size_t i = 0; i < low.count; ++i) {
    const std::int32_t next = i + 1 == low.count ? to : add_state();
    add_bytes(at, low.bytes[i], high.bytes[i], next);
    at = next;
  }
}

Fragment GrammarBuilder::code_point(const CodePoints& set) {
  static constexpr CodePoints::value_type kLengths[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
  const Fragment out = never();
  for (const CodePointRange& range : set) {
    for (const CodePointRange& length : kLengths) {
      const char32_t first = std::max(range.first, length.first);
      const char32_t last = std::min(range.last, length.last);
      if (first <= last) {
        add_utf8_range(out.start, first, last, out.end);
      }
    }
  }
  return out;
}

Fragment GrammarBuilder::sequence(const std::vector<Fragment>& parts) {
  Fragment out = empty();
  for (const Fragment& part : parts) {
    add_edge(out.end, part.start);
    out.end = part.end;
  }
  return out;
}

Fragment GrammarBuilder::choice(const std::vector<Fragment>& parts) {
  const Fragment out = never();
  for (const Fragment& part : parts) {
    add_edge(out.start, part.start);
    add_edge(part.end, out.end);
  }
  return out;
}

Fragment GrammarBuilder::optional(Fragment part) {
  return choice({part, empty()});
}

Fragment GrammarBuilder::repeat(std::int32_t min, std::int32_t max,
                                const std::function<Fragment()>& make) {
  Fragment out = empty();
  const std::int32_t end = add_state();
  for (std::int32_t i = 0; !full_; ++i) {
    if (i >= min) {
      add_edge(out.end, end);
    }
    if (i >= max) {
      break;
    }
    const Fragment part = make();
    const bool loops = max == kUnbounded && i >= min;
    const std::int32_t before = loops ? add_state() : out.end;
    if (loops) {
      add_edge(out.end, before);
    }
    add_edge(before, part.start);
    if (loops) {
      add_edge(part.end, before);
      add_edge(before, end);
      break;
    }
    out.end = part.end;
  }
  out.end = end;
  return out;
}

GrammarBuilder::RuleId GrammarBuilder::declare_rule() {
  if (static_cast<std::int32_t>(rules_.size()) >= limits_.max_rules) {
    full_ = true;
    return 0;
  }
  rules_.emplace_back();
  return static_cast<RuleId>(rules_.size()) - 1;
}

void GrammarBuilder::define_rule(RuleId rule, Fragment body) {
  // A start of its own, so that a body that refers back to its start does not begin again.
  const Fragment whole = sequence({body});
  rules_[static_cast<std::size_t>(rule)] = {whole.start, whole.end};
}

Result<Grammar> GrammarBuilder::build(RuleId start, std::int32_t max_depth) const {
  if (full_) {
    return Status{Errc::kResourceExhausted, "needs more than " + std::to_string(limits_.max_rules) +
                                                " values or " +
                                                std::to_string(limits_.max_nfa_states) + " states"};
  }
  return Determinizer(*this, max_depth).run(start);
}

}  // namespace tidemill::engines
