// SPDX-License-Identifier: Apache-2.0
// The filter `pprint`, which behaves like Python's pprint.pformat: mappings are sorted by their
// keys, and values longer than a line are broken into one line per item.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/utf8.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/text_filters.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::int64_t kLineWidth = 80;

std::int64_t characters_in(std::string_view text) {
  return static_cast<std::int64_t>(count_code_points(text));
}

bool is_plain_sequence(const Value& value) {
  return (value.is_sequence(SequenceKind::kList) || value.is_sequence(SequenceKind::kTuple)) &&
         !value.as_sequence().is_group;
}

// ---- Sorted mappings ----------------------------------------------------------------------------

// Keys of different types that cannot be compared are sorted by the names of their types.
int rank_of_type(const Value& key) {
  if (key.is_none()) {
    return 0;
  }
  if (key.is_number()) {
    return 1;
  }
  return key.is_string() ? 2 : 3;
}

bool comes_before(Runtime& runtime, const Value& a, const Value& b) {
  const int rank = rank_of_type(a);
  if (rank != rank_of_type(b)) {
    return rank < rank_of_type(b);
  }
  try {
    return rank > 0 && order(runtime, a, b) < 0;
  } catch (const TemplateError& error) {
    // Tuples whose items cannot be compared. Python uses their addresses.
    if (error.kind() != TemplateError::Kind::kFailed) {
      throw;
    }
    return false;
  }
}

std::vector<const Dict::Entry*> sorted_entries(Runtime& runtime, const Dict& dict) {
  std::vector<const Dict::Entry*> entries;
  runtime.budget.allocate(dict.size() * sizeof(void*));
  for (const Dict::Entry& entry : dict.entries()) {
    entries.push_back(&entry);
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [&runtime](const Dict::Entry* a, const Dict::Entry* b) {
                     runtime.budget.step();
                     return comes_before(runtime, a->key, b->key);
                   });
  return entries;
}

// ---- Layout -------------------------------------------------------------------------------------

class PrettyPrinter {
public:
  explicit PrettyPrinter(Runtime& runtime) : runtime_(runtime) {}

  std::string print(const Value& value) {
    put_value(value, {0, 0, 0});
    return std::move(out_);
  }

private:
  // Where a value is printed: the column, how many characters follow it on its last line, and how
  // deeply it is nested.
  struct Place {
    std::int64_t column = 0;
    std::int64_t reserved = 0;
    int level = 0;
  };

  void put(std::string_view text) {
    runtime_.budget.allocate(text.size());
    out_.append(text);
  }

  void put_line_end(std::int64_t column) {
    put("\n" + std::string(static_cast<std::size_t>(column), ' '));
  }

  // Returns the value on one line.
  std::string one_line(const Value& value) {
    runtime_.budget.step();
    if (!value.is_dict() && !is_plain_sequence(value)) {
      return to_repr(value, runtime_.budget);
    }
    std::string text;
    const auto append = [&](std::string_view separator, const std::string& part) {
      runtime_.budget.allocate(separator.size() + part.size());
      text.append(separator).append(part);
    };
    if (value.is_dict()) {
      for (const Dict::Entry* entry : sorted_entries(runtime_, value.as_dict())) {
        append(text.empty() ? "" : ", ", one_line(entry->key));
        append(": ", one_line(entry->value));
      }
      return "{" + text + "}";
    }
    const List& items = value.as_sequence().items;
    for (const Value& item : items) {
      append(text.empty() ? "" : ", ", one_line(item));
    }
    if (value.is_sequence(SequenceKind::kList)) {
      return "[" + text + "]";
    }
    return "(" + text + (items.size() == 1 ? ",)" : ")");
  }

  void put_value(const Value& value, Place place) {
    const std::string line = one_line(value);
    if (characters_in(line) <= kLineWidth - place.column - place.reserved) {
      return put(line);
    }
    ++place.level;
    if (value.is_dict()) {
      return put_dict(value.as_dict(), place);
    }
    if (is_plain_sequence(value)) {
      return put_sequence(value.as_sequence(), place);
    }
    if (value.is_string() && !value.is_markup()) {
      return put_string(value.as_string(), place);
    }
    put(line);
  }

  void put_dict(const Dict& dict, const Place& place) {
    put("{");
    const auto entries = sorted_entries(runtime_, dict);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const bool is_last = i + 1 == entries.size();
      const std::string key = one_line(entries[i]->key) + ": ";
      put(key);
      put_value(entries[i]->value, {place.column + 1 + characters_in(key),
                                    is_last ? place.reserved + 1 : 1, place.level});
      if (!is_last) {
        put(",");
        put_line_end(place.column + 1);
      }
    }
    put("}");
  }

  void put_sequence(const Sequence& sequence, const Place& place) {
    const bool is_list = sequence.kind == SequenceKind::kList;
    const std::string_view close = is_list ? "]" : sequence.items.size() == 1 ? ",)" : ")";
    put(is_list ? "[" : "(");
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      const bool is_last = i + 1 == sequence.items.size();
      const std::int64_t reserved =
          is_last ? place.reserved + static_cast<std::int64_t>(close.size()) : 1;
      put_value(sequence.items[i], {place.column + 1, reserved, place.level});
      if (!is_last) {
        put(",");
        put_line_end(place.column + 1);
      }
    }
    put(close);
  }

  // Prints a string as adjacent literals, one per line. A string that is not inside a container is
  // enclosed in parentheses.
  void put_string(const std::string& text, Place place) {
    const bool is_outermost = place.level == 1;
    if (is_outermost) {
      ++place.column;
      ++place.reserved;
    }
    const auto literals = literals_of(text, place);
    if (literals.size() == 1) {
      return put(literals.front());
    }
    put(is_outermost ? "(" : "");
    for (std::size_t i = 0; i < literals.size(); ++i) {
      if (i > 0) {
        put_line_end(place.column);
      }
      put(literals[i]);
    }
    put(is_outermost ? ")" : "");
  }

  std::vector<std::string> literals_of(const std::string& text, const Place& place) {
    const std::int64_t width = kLineWidth - place.column;
    std::vector<std::string> literals;
    const auto lines = split_lines(text, /*keep_ends=*/true);
    runtime_.budget.allocate(lines.size() * sizeof(std::string));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::int64_t last_width = i + 1 == lines.size() ? width - place.reserved : width;
      std::string literal = literal_of(lines[i]);
      if (characters_in(literal) <= last_width) {
        literals.push_back(std::move(literal));
      } else {
        put_words(words_of(lines[i]), width, last_width, literals);
      }
    }
    return literals;
  }

  // Appends literals of as many words as fit. The last word has less space.
  void put_words(const std::vector<std::string_view>& words, std::int64_t width,
                 std::int64_t last_width, std::vector<std::string>& literals) {
    std::string current;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string candidate = current + std::string(words[i]);
      const std::int64_t space = i + 1 == words.size() ? last_width : width;
      if (characters_in(literal_of(candidate)) <= space) {
        current = candidate;
        continue;
      }
      if (!current.empty()) {
        literals.push_back(literal_of(current));
      }
      current = words[i];
    }
    if (!current.empty()) {
      literals.push_back(literal_of(current));
    }
  }

  std::string literal_of(std::string_view text) {
    return to_repr(make_string(runtime_, std::string(text)), runtime_.budget);
  }

  // Splits into words, each with the white space after it. White space at the beginning is a word.
  static std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    std::size_t begin = 0;
    bool in_space = false;
    for (std::size_t i = 0; i < text.size();) {
      const Utf8Step step = read_utf8(text, i);
      const bool space = is_space(step.code_point);
      if (in_space && !space) {
        words.push_back(text.substr(begin, i - begin));
        begin = i;
      }
      in_space = space;
      i += step.length;
    }
    words.push_back(text.substr(begin));
    return words;
  }

  Runtime& runtime_;
  std::string out_;
};

}  // namespace

Value filter_pprint(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("pprint", arguments, {});
  return Value(PrettyPrinter(runtime).print(input));
}

}  // namespace tidemill::engines::chat
