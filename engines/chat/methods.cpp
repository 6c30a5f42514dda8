// SPDX-License-Identifier: Apache-2.0
// The methods of strings, mappings, sequences and loops that templates can call. Methods that
// modify their object are not supported, because values are immutable.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/builtins.hpp"
#include "engines/chat/format.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

using Method = Value (*)(Runtime& runtime, const Value& self, const Arguments& arguments);

struct NamedMethod {
  std::string_view name;
  Method method;
};

template <std::size_t N>
Method find_in(const std::array<NamedMethod, N>& methods, std::string_view name) {
  const auto* found = std::find_if(methods.begin(), methods.end(),
                                   [name](const NamedMethod& m) { return m.name == name; });
  return found == methods.end() ? nullptr : found->method;
}

const std::string& string_argument(const BoundArguments& arguments, std::size_t i,
                                   std::string_view method) {
  const Value& value = arguments.require(i);
  if (!value.is_string()) {
    fail("str." + std::string(method) + ": the argument must be a str, not " +
         std::string(value.type_name()));
  }
  return value.as_string();
}

void no_arguments(std::string_view method, const Arguments& arguments) {
  const BoundArguments check(method, arguments, {});
}

// ---- Strings ------------------------------------------------------------------------------------

// A method without arguments that maps the whole text.
template <std::string (*map)(std::string_view)>
Value mapped(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("a str method", arguments);
  runtime.budget.allocate(8 * self.as_string().size());
  return make_string(runtime, map(self.as_string()));
}

template <StripEnds ends>
Value stripped(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("strip", arguments, {"chars"});
  runtime.budget.scan(self.as_string().size());
  const Value* characters = bound.find(0);
  if (characters == nullptr || characters->is_none()) {
    return make_string(runtime, std::string{strip(self.as_string(), ends)});
  }
  const std::string& set = string_argument(bound, 0, "strip");
  runtime.budget.scan(self.as_string().size() * (1 + set.size() / 8));
  return make_string(runtime, std::string{strip(self.as_string(), set, ends)});
}

Value make_strings(Runtime& runtime, const std::vector<std::string_view>& parts) {
  List items;
  for (const std::string_view part : parts) {
    runtime.budget.allocate(sizeof(Value) * 4);
    items.push_back(make_string(runtime, std::string(part)));
  }
  return make_sequence(runtime, std::move(items));
}

// str.split and str.rsplit.
Value split_from(Runtime& runtime, const Value& self, const Arguments& arguments,
                 SearchFrom direction) {
  const BoundArguments bound("split", arguments, {"sep", "maxsplit"});
  const std::string& text = self.as_string();
  runtime.budget.scan(text.size());
  const std::int64_t max = bound.integer(1, -1);
  if (bound.find(0) == nullptr || bound.find(0)->is_none()) {
    return make_strings(runtime, split_at_space(text, max, direction));
  }
  const std::string& separator = string_argument(bound, 0, "split");
  if (separator.empty()) {
    fail("empty separator");
  }
  return make_strings(runtime, split_at(text, separator, max, direction));
}

Value split(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return split_from(runtime, self, arguments, SearchFrom::kLeft);
}

Value rsplit(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return split_from(runtime, self, arguments, SearchFrom::kRight);
}

Value splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("splitlines", arguments, {"keepends"});
  runtime.budget.scan(self.as_string().size());
  return make_strings(runtime, split_lines(self.as_string(), bound.flag(0, false)));
}

// A part of a text, and the number of code points before it.
struct TextPart {
  std::string_view text;
  std::int64_t first = 0;
};

// Returns the part of `text` that the arguments `start` and `end` select, which are parameters 1
// and 2 and count code points, from the end if they are negative. Returns nullopt if `start` is
// after `end`, so that not even the empty text can be found.
std::optional<TextPart> selected_part(Runtime& runtime, std::string_view text,
                                      const BoundArguments& bound) {
  const auto given = [&bound](std::size_t parameter) {
    return bound.find(parameter) != nullptr && !bound.find(parameter)->is_none();
  };
  if (!given(1) && !given(2)) {
    return TextPart{text, 0};
  }
  runtime.budget.scan(2 * text.size());
  const auto size = static_cast<std::int64_t>(count_code_points(text));
  const auto from_end = [size](std::int64_t at) {
    return at < 0 ? std::max<std::int64_t>(at, -size) + size : at;
  };
  const std::int64_t begin = given(1) ? from_end(bound.integer(1, 0)) : 0;
  const std::int64_t end = given(2) ? std::min(from_end(bound.integer(2, size)), size) : size;
  if (begin > end) {
    return std::nullopt;
  }
  const std::size_t first = byte_offset(text, static_cast<std::size_t>(begin));
  return TextPart{
      text.substr(first, byte_offset(text.substr(first), static_cast<std::size_t>(end - begin))),
      begin};
}

// str.startswith and str.endswith take a string or a tuple of strings.
template <class Matches>
Value affix(Runtime& runtime, const Value& self, const Arguments& arguments,
            std::string_view method, const Matches& matches) {
  const BoundArguments bound(method, arguments, {"affix", "start", "end"});
  runtime.budget.scan(self.as_string().size());
  const auto part = selected_part(runtime, self.as_string(), bound);
  const Value& affixes = bound.require(0);
  if (!affixes.is_sequence(SequenceKind::kTuple)) {
    const std::string& wanted = string_argument(bound, 0, method);
    return part.has_value() && matches(part->text, wanted);
  }
  const List& items = affixes.as_sequence().items;
  return part.has_value() && std::any_of(items.begin(), items.end(), [&](const Value& item) {
           return item.is_string() && matches(part->text, item.as_string());
         });
}

Value startswith(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return affix(runtime, self, arguments, "startswith",
               [](std::string_view text, std::string_view part) { return text.starts_with(part); });
}

Value endswith(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return affix(runtime, self, arguments, "endswith",
               [](std::string_view text, std::string_view part) { return text.ends_with(part); });
}

Value remove_affix(Runtime& runtime, const Value& self, const Arguments& arguments, bool at_end) {
  const std::string_view name = at_end ? "removesuffix" : "removeprefix";
  const BoundArguments bound(name, arguments, {"affix"});
  const std::string& part = string_argument(bound, 0, name);
  std::string_view text = self.as_string();
  if (text.size() >= part.size()) {
    if (!at_end && text.substr(0, part.size()) == part) {
      text.remove_prefix(part.size());
    } else if (at_end && text.substr(text.size() - part.size()) == part) {
      text.remove_suffix(part.size());
    }
  }
  return make_string(runtime, std::string(text));
}

Value removeprefix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return remove_affix(runtime, self, arguments, false);
}

Value removesuffix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return remove_affix(runtime, self, arguments, true);
}

Value replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  return Value(replace_all(runtime.budget, self.as_string(), string_argument(bound, 0, "replace"),
                           string_argument(bound, 1, "replace"), bound.integer(2, -1)));
}

// Returns the code point index of the first or last occurrence, or -1 if there is none.
std::int64_t position(Runtime& runtime, const Value& self, const Arguments& arguments,
                      std::string_view method, SearchFrom direction) {
  const BoundArguments bound(method, arguments, {"sub", "start", "end"});
  const std::string& wanted = string_argument(bound, 0, method);
  runtime.budget.scan(2 * self.as_string().size() + wanted.size());
  const auto part = selected_part(runtime, self.as_string(), bound);
  if (!part.has_value()) {
    return -1;
  }
  const std::size_t at = direction == SearchFrom::kLeft ? find_text(part->text, wanted, 0)
                                                        : find_last_text(part->text, wanted);
  if (at == std::string_view::npos) {
    return -1;
  }
  return part->first + static_cast<std::int64_t>(count_code_points(part->text.substr(0, at)));
}

Value find(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return position(runtime, self, arguments, "find", SearchFrom::kLeft);
}

Value rfind(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return position(runtime, self, arguments, "rfind", SearchFrom::kRight);
}

template <SearchFrom direction>
Value index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::int64_t at = position(runtime, self, arguments, "index", direction);
  if (at < 0) {
    fail("substring not found");
  }
  return at;
}

Value count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("count", arguments, {"sub", "start", "end"});
  const std::string& wanted = string_argument(bound, 0, "count");
  runtime.budget.scan(self.as_string().size());
  const auto part = selected_part(runtime, self.as_string(), bound);
  if (!part.has_value()) {
    return 0;
  }
  if (wanted.empty()) {
    return static_cast<std::int64_t>(count_code_points(part->text) + 1);
  }
  std::int64_t number = 0;
  for (std::size_t at = find_text(part->text, wanted, 0); at != std::string_view::npos;
       at = find_text(part->text, wanted, at + wanted.size())) {
    ++number;
  }
  return number;
}

Value join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"iterable"});
  std::string out;
  bool first = true;
  for (const Value& item : iterate(runtime, bound.require(0))) {
    if (!item.is_string()) {
      fail("sequence item: expected str instance, " + std::string(item.type_name()) + " found");
    }
    if (!first) {
      append_text(self, runtime.budget, out);
    }
    first = false;
    append_text(item, runtime.budget, out);
  }
  return Value(std::move(out));
}

Value format(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return format_braces(runtime, self, arguments);
}

Value format_map(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("format_map", arguments, {"mapping"});
  const Value& mapping = bound.require(0);
  if (!mapping.is_dict()) {
    fail("format_map: the argument must be a dict, not " + std::string(mapping.type_name()));
  }
  Arguments named;
  for (const Dict::Entry& entry : mapping.as_dict().entries()) {
    if (entry.key.is_string()) {
      named.named.emplace_back(entry.key.as_string(), entry.value);
    }
  }
  return format_braces(runtime, self, named);
}

// Replaces tabs by spaces, up to the next column that `tabsize` divides.
Value expandtabs(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("expandtabs", arguments, {"tabsize"});
  const std::int64_t size = bound.integer(0, 8);
  if (size != static_cast<std::int32_t>(size)) {
    fail("expandtabs: the tab size does not fit in 32 bits");
  }
  const std::string& text = self.as_string();
  runtime.budget.allocate(text.size());
  std::string out;
  std::int64_t column = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    if (step.code_point == U'\t') {
      const std::int64_t spaces = size > 0 ? size - column % size : 0;
      runtime.budget.allocate(static_cast<std::uint64_t>(spaces));
      out.append(static_cast<std::size_t>(spaces), ' ');
      column += spaces;
    } else {
      out.append(text, i, step.length);
      column = step.code_point == U'\n' || step.code_point == U'\r' ? 0 : column + 1;
    }
    i += step.length;
  }
  return Value(std::move(out));
}

// Pads to a width with a fill character.
Value padded(Runtime& runtime, const Value& self, const Arguments& arguments, char side) {
  const BoundArguments bound("a padding method", arguments, {"width", "fillchar"});
  const std::string& text = self.as_string();
  const std::string fill = bound.find(1) == nullptr ? " " : string_argument(bound, 1, "center");
  if (count_code_points(fill) != 1) {
    fail("the fill character must be exactly one character long");
  }
  (void)bound.require(0);
  // A negative width is as good as zero.
  const std::int64_t missing = std::max<std::int64_t>(bound.integer(0, 0), 0) -
                               static_cast<std::int64_t>(count_code_points(text));
  if (missing <= 0) {
    return self;
  }
  runtime.budget.allocate(static_cast<std::uint64_t>(missing) * fill.size() + text.size());
  // Like Python's center: if the number of fill characters is odd, the extra one is on the left if
  // the width is odd.
  const std::int64_t left = side == 'r'   ? missing
                            : side == 'l' ? 0
                                          : missing / 2 + (missing & bound.integer(0, 0) & 1);
  std::string out;
  for (std::int64_t i = 0; i < left; ++i) {
    out += fill;
  }
  out += text;
  for (std::int64_t i = left; i < missing; ++i) {
    out += fill;
  }
  return Value(std::move(out));
}

Value ljust(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return padded(runtime, self, arguments, 'l');
}

Value rjust(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return padded(runtime, self, arguments, 'r');
}

Value center(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return padded(runtime, self, arguments, 'c');
}

Value zfill(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("zfill", arguments, {"width"});
  (void)bound.require(0);
  std::string text = self.as_string();
  // A negative width is as good as zero.
  const std::int64_t missing = std::max<std::int64_t>(bound.integer(0, 0), 0) -
                               static_cast<std::int64_t>(count_code_points(text));
  if (missing <= 0) {
    return self;
  }
  runtime.budget.allocate(static_cast<std::uint64_t>(missing) + text.size());
  const bool has_sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  text.insert(has_sign ? 1 : 0, static_cast<std::size_t>(missing), '0');
  return Value(std::move(text));
}

// Returns the text before a separator, the separator, and the text after it.
Value partition_at(Runtime& runtime, const Value& self, const Arguments& arguments,
                   SearchFrom direction) {
  const BoundArguments bound("partition", arguments, {"sep"});
  const std::string& text = self.as_string();
  const std::string& part = string_argument(bound, 0, "partition");
  if (part.empty()) {
    fail("empty separator");
  }
  runtime.budget.allocate(2 * text.size());
  const std::size_t at =
      direction == SearchFrom::kLeft ? find_text(text, part, 0) : find_last_text(text, part);
  List items;
  if (at != std::string_view::npos) {
    items = {Value(text.substr(0, at)), Value(part), Value(text.substr(at + part.size()))};
  } else if (direction == SearchFrom::kLeft) {
    items = {self, Value(""), Value("")};
  } else {
    items = {Value(""), Value(""), self};
  }
  return make_sequence(runtime, std::move(items), SequenceKind::kTuple);
}

Value partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return partition_at(runtime, self, arguments, SearchFrom::kLeft);
}

Value rpartition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return partition_at(runtime, self, arguments, SearchFrom::kRight);
}

enum class EmptyText : std::uint8_t { kIsIn, kIsNotIn };

// Returns whether all characters of the text are in a class.
template <bool (*in_class)(char32_t) noexcept, EmptyText empty = EmptyText::kIsNotIn>
Value all_in(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("a str test", arguments);
  const std::string& text = self.as_string();
  runtime.budget.scan(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    if (!in_class(step.code_point)) {
      return false;
    }
    i += step.length;
  }
  return !text.empty() || empty == EmptyText::kIsIn;
}

bool is_ascii(char32_t c) noexcept {
  return c < 0x80;
}

bool is_alphanumeric(char32_t c) noexcept {
  return is_alphabetic(c) || is_numeric(c);
}

template <bool (*wanted)(char32_t) noexcept, bool (*other)(char32_t) noexcept>
Value all_cased(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("a str test", arguments);
  const std::string& text = self.as_string();
  runtime.budget.scan(text.size());
  bool found = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    if (other(step.code_point)) {
      return false;
    }
    found = found || wanted(step.code_point);
    i += step.length;
  }
  return found;
}

Value istitle(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("a str test", arguments);
  runtime.budget.scan(self.as_string().size());
  return is_title(self.as_string());
}

constexpr std::array<NamedMethod, 43> kStringMethods = {{
    {"capitalize", mapped<capitalize>},
    {"casefold", mapped<fold_case>},
    {"center", center},
    {"count", count},
    {"endswith", endswith},
    {"expandtabs", expandtabs},
    {"find", find},
    {"format", format},
    {"format_map", format_map},
    {"index", index<SearchFrom::kLeft>},
    {"isalnum", all_in<is_alphanumeric>},
    {"isalpha", all_in<is_alphabetic>},
    {"isascii", all_in<is_ascii, EmptyText::kIsIn>},
    {"isdecimal", all_in<is_decimal_digit>},
    {"isdigit", all_in<is_decimal_digit>},
    {"islower", all_cased<is_lower, is_upper>},
    {"isnumeric", all_in<is_numeric>},
    {"isprintable", all_in<is_printable, EmptyText::kIsIn>},
    {"isspace", all_in<is_space>},
    {"istitle", istitle},
    {"isupper", all_cased<is_upper, is_lower>},
    {"join", join},
    {"ljust", ljust},
    {"lower", mapped<to_lower>},
    {"lstrip", stripped<StripEnds::kLeft>},
    {"partition", partition},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rfind", rfind},
    {"rindex", index<SearchFrom::kRight>},
    {"rjust", rjust},
    {"rpartition", rpartition},
    {"rsplit", rsplit},
    {"rstrip", stripped<StripEnds::kRight>},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", startswith},
    {"strip", stripped<StripEnds::kBoth>},
    {"swapcase", mapped<swap_case>},
    {"title", mapped<to_title>},
    {"upper", mapped<to_upper>},
    {"zfill", zfill},
}};

// The other public methods of Python's str. They exist, but cannot be called.
constexpr std::array<std::string_view, 4> kRefusedStringMethods = {"encode", "isidentifier",
                                                                   "maketrans", "translate"};

// ---- Markup -------------------------------------------------------------------------------------

Value unescape(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("unescape", arguments);
  runtime.budget.allocate(2 * self.as_string().size());
  return Value(unescape_html(self.as_string()));
}

Value striptags(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("striptags", arguments);
  runtime.budget.allocate(3 * self.as_string().size());
  return Value(strip_tags(self.as_string()));
}

Value escape(Runtime& runtime, const Value& /*self*/, const Arguments& arguments) {
  return escaped(runtime, BoundArguments("escape", arguments, {"s"}).require(0));
}

constexpr std::array<NamedMethod, 3> kMarkupMethods = {
    {{"escape", escape}, {"striptags", striptags}, {"unescape", unescape}}};

// Calls a method of strings on markup: text that it inserts is escaped, and its result is markup.
Value call_on_markup(Runtime& runtime, const Value& self, const NamedMethod& method,
                     Arguments arguments) {
  const auto escape_argument = [&](std::size_t index, std::string_view parameter) {
    if (index < arguments.positional.size()) {
      arguments.positional[index] = escaped(runtime, arguments.positional[index]);
    }
    for (auto& [name, value] : arguments.named) {
      value = name == parameter ? escaped(runtime, value) : value;
    }
  };
  if (method.name == "replace") {
    escape_argument(1, "new");
  } else if (method.name == "center" || method.name == "ljust" || method.name == "rjust") {
    escape_argument(1, "fillchar");
  } else if (method.name == "join" && !arguments.positional.empty()) {
    List items = iterate(runtime, arguments.positional.front());
    for (Value& item : items) {
      item = escaped(runtime, item);
    }
    arguments.positional.front() = make_sequence(runtime, std::move(items));
  }
  return as_markup(runtime, method.method(runtime, self, arguments));
}

// ---- Mappings -----------------------------------------------------------------------------------

enum class DictPart : std::uint8_t { kKeys, kValues, kItems };

template <DictPart part>
Value view(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("a dict method", arguments);
  List items;
  for (const Dict::Entry& entry : self.as_dict().entries()) {
    if (part == DictPart::kKeys) {
      items.push_back(entry.key);
    } else if (part == DictPart::kValues) {
      items.push_back(entry.value);
    } else {
      items.push_back(make_sequence(runtime, {entry.key, entry.value}, SequenceKind::kTuple));
    }
  }
  return make_sequence(runtime, std::move(items), SequenceKind::kView);
}

Value get(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("get", arguments, {"key", "default"});
  if (const Value* found = self.as_dict().find(bound.require(0))) {
    return *found;
  }
  return bound.find(1) == nullptr ? Value() : *bound.find(1);
}

Value copy(Runtime& runtime, const Value& self, const Arguments& arguments) {
  no_arguments("copy", arguments);
  if (!self.is_sequence()) {
    return self;
  }
  return make_sequence(runtime, self.as_sequence().items);
}

constexpr std::array<NamedMethod, 5> kDictMethods = {{
    {"copy", copy},
    {"get", get},
    {"items", view<DictPart::kItems>},
    {"keys", view<DictPart::kKeys>},
    {"values", view<DictPart::kValues>},
}};

// ---- Sequences ----------------------------------------------------------------------------------

Value count_item(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("count", arguments, {"value"});
  const Value& wanted = bound.require(0);
  const List& items = self.as_sequence().items;
  return static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(),
      [&](const Value& item) { return apply(runtime, CompareOp::kEqual, item, wanted); }));
}

Value index_of_item(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("index", arguments, {"value"});
  const Value& wanted = bound.require(0);
  const List& items = self.as_sequence().items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) {
    return apply(runtime, CompareOp::kEqual, item, wanted);
  });
  if (found == items.end()) {
    fail("the value is not in the list");
  }
  return static_cast<std::int64_t>(found - items.begin());
}

constexpr std::array<NamedMethod, 3> kListMethods = {
    {{"copy", copy}, {"count", count_item}, {"index", index_of_item}}};

// ---- Loops --------------------------------------------------------------------------------------

Value cycle(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) {
    fail("no items for cycling given");
  }
  return arguments.positional[self.as_loop().index % arguments.positional.size()];
}

Value changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  std::optional<List>& last = *self.as_loop().last_changed;
  const Value now = make_sequence(runtime, arguments.positional);
  if (last && apply(runtime, CompareOp::kEqual, Value::sequence(*last), now)) {
    return false;
  }
  last = arguments.positional;
  return true;
}

constexpr std::array<NamedMethod, 2> kLoopMethods = {{{"changed", changed}, {"cycle", cycle}}};

// Returns an attribute of `loop` that is not a method, or an undefined value.
Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto size = static_cast<std::int64_t>(loop.items.size());
  const auto depth = static_cast<std::int64_t>(loop.depth);
  if (name == "index") {
    return index + 1;
  }
  if (name == "index0") {
    return index;
  }
  if (name == "revindex") {
    return size - index;
  }
  if (name == "revindex0") {
    return size - index - 1;
  }
  if (name == "first") {
    return index == 0;
  }
  if (name == "last") {
    return index + 1 == size;
  }
  if (name == "length") {
    return size;
  }
  if (name == "depth") {
    return depth + 1;
  }
  if (name == "depth0") {
    return depth;
  }
  if (name == "previtem") {
    return index == 0 ? Value::undefined("there is no previous item") : loop.items[loop.index - 1];
  }
  if (name == "nextitem") {
    return index + 1 == size ? Value::undefined("there is no next item")
                             : loop.items[loop.index + 1];
  }
  return Value::undefined("");
}

Value refused_method(std::string name) {
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->call = [name = std::move(name)](const Arguments& /*arguments*/) -> Value {
    fail("str." + name + " is not supported");
  };
  return std::shared_ptr<const Callable>(std::move(callable));
}

Method find_method_of(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Value::Kind::kString: return find_in(kStringMethods, name);
    case Value::Kind::kDict: return find_in(kDictMethods, name);
    case Value::Kind::kSequence:
      if (object.is_sequence(SequenceKind::kList) || object.is_sequence(SequenceKind::kTuple)) {
        return find_in(kListMethods, name);
      }
      return nullptr;
    case Value::Kind::kLoop: return find_in(kLoopMethods, name);
    default: return nullptr;
  }
}

}  // namespace

Value find_method(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is(Value::Kind::kLoop)) {
    Value attribute = loop_attribute(object.as_loop(), name);
    if (!attribute.is_undefined() || name == "previtem" || name == "nextitem") {
      return attribute;
    }
  }
  if (object.is(Value::Kind::kCallable) && name == "name") {
    return object.as_callable().name;
  }
  if (object.is_sequence() && object.as_sequence().is_group &&
      (name == "grouper" || name == "list")) {
    return object.as_sequence().items[name == "grouper" ? 0 : 1];
  }
  const bool for_markup = object.is_markup() && find_in(kMarkupMethods, name) != nullptr;
  const Method method = for_markup ? find_in(kMarkupMethods, name) : find_method_of(object, name);
  if (method == nullptr) {
    const bool refused = object.is_string() && std::ranges::count(kRefusedStringMethods, name) > 0;
    return refused ? refused_method(std::string(name)) : Value::undefined("");
  }
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->depth = object.depth() + 1;
  callable->call = [&runtime, object, method, name = callable->name,
                    escapes = object.is_markup() && !for_markup](const Arguments& arguments) {
    return escapes ? call_on_markup(runtime, object, {name, method}, arguments)
                   : method(runtime, object, arguments);
  };
  return std::shared_ptr<const Callable>(std::move(callable));
}

}  // namespace tidemill::engines::chat
