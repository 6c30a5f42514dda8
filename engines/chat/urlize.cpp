// SPDX-License-Identifier: Apache-2.0
// The filter `urlize`, which makes links of the URLs and mail addresses in a text.
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/utf8.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text_filters.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kNoPosition = std::string_view::npos;

// ---- Characters ---------------------------------------------------------------------------------

template <class InClass>
bool all_of(std::string_view text, const InClass& in_class) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    if (!in_class(step.code_point)) {
      return false;
    }
    i += step.length;
  }
  return true;
}

bool is_size_between(std::string_view text, std::size_t low, std::size_t high) {
  const std::size_t size = count_code_points(text);
  return size >= low && size <= high;
}

// Returns the ASCII letter that a character is equal to if case is ignored, in lower case. Four
// characters outside of ASCII are equal to i, k or s.
char32_t folded(char32_t c) {
  switch (c) {
    case 0x130:
    case 0x131: return U'i';
    case 0x17F: return U's';
    case 0x212A: return U'k';
    default: return c >= U'A' && c <= U'Z' ? c + 0x20 : c;
  }
}

std::string fold(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    append_utf8(folded(step.code_point), out);
    i += step.length;
  }
  return out;
}

// ---- URLs ---------------------------------------------------------------------------------------

bool is_label_character(char32_t c) {
  return is_word_character(c) || c == U'%' || c == U'-';
}

// Returns whether the last label of a host may be a top-level domain: 2 to 63 letters, or "xn--"
// and 2 to 59 characters.
bool is_top_level(std::string_view label) {
  const std::string text = fold(label);
  const auto is_letter = [](char32_t c) { return c >= U'a' && c <= U'z'; };
  if (is_size_between(text, 2, 63) && all_of(text, is_letter)) {
    return true;
  }
  const std::string_view rest =
      std::string_view{text}.substr(std::min<std::size_t>(4, text.size()));
  return text.rfind("xn--", 0) == 0 && is_size_between(rest, 2, 59) &&
         all_of(rest, [](char32_t c) { return is_word_character(c) || c == U'%'; });
}

// Labels separated by dots, and a top-level domain.
bool is_host(std::string_view host) {
  const auto labels = split_at(host, ".", -1, SearchFrom::kLeft);
  return is_top_level(labels.back()) &&
         std::all_of(labels.begin(), labels.end() - 1, [](std::string_view label) {
           return !label.empty() && all_of(label, is_label_character);
         });
}

// A host that is recognized without a scheme: it has one of the oldest top-level domains.
bool is_common_host(std::string_view host) {
  constexpr std::array<std::string_view, 8> kDomains = {"com", "net", "int",  "edu",
                                                        "gov", "org", "info", "mil"};
  const auto labels = split_at(host, ".", -1, SearchFrom::kLeft);
  const bool is_common =
      std::find(kDomains.begin(), kDomains.end(), fold(labels.back())) != kDomains.end();
  return labels.size() > 1 && is_common &&
         std::all_of(labels.begin(), labels.end() - 1, [](std::string_view label) {
           return is_size_between(label, 2, 63) && all_of(label, is_label_character);
         });
}

bool is_ipv4(std::string_view host) {
  const auto parts = split_at(host, ".", -1, SearchFrom::kLeft);
  return parts.size() == 4 && std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
           return is_size_between(part, 1, 3) && all_of(part, is_decimal_digit);
         });
}

// "[", two groups that end with ":", one to six groups of which each may end with ":", "]". A group
// has up to four digits.
bool is_ipv6(std::string_view host) {
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') {
    return false;
  }
  constexpr std::size_t kGroupSize = 4;
  const auto is_digit = [](char32_t c) {
    return is_decimal_digit(c) || (folded(c) >= U'a' && folded(c) <= U'f');
  };
  const auto groups = split_at(host.substr(1, host.size() - 2), ":", -1, SearchFrom::kLeft);
  std::size_t count = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t size = count_code_points(groups[i]);
    if (!all_of(groups[i], is_digit) || (i < 2 && size > kGroupSize)) {
      return false;
    }
    const bool ends_with_colon = i + 1 < groups.size();
    if (i >= 2) {
      const std::size_t needed = (size + kGroupSize - 1) / kGroupSize;
      count += ends_with_colon ? std::max<std::size_t>(needed, 1) : needed;
    }
  }
  return groups.size() >= 3 && count <= 6;
}

// Splits a port from a host. Returns false if what follows the colon is not a port.
bool remove_port(std::string_view& host) {
  const std::size_t bracket = host.rfind(']');
  const std::size_t colon = host.find(':', bracket == kNoPosition ? 0 : bracket);
  if (colon == kNoPosition) {
    return true;
  }
  const std::string_view port = host.substr(colon + 1);
  host = host.substr(0, colon);
  return is_size_between(port, 1, 5) && all_of(port, is_decimal_digit);
}

bool is_url(std::string_view text) {
  const std::string start = fold(text.substr(0, std::min<std::size_t>(text.size(), 16)));
  const bool has_scheme = start.rfind("http://", 0) == 0 || start.rfind("https://", 0) == 0;
  std::string_view host = text;
  if (has_scheme) {
    host.remove_prefix(text.find("//") + 2);
  }
  host = host.substr(0, std::min(host.find_first_of("/?#"), host.size()));
  if (!remove_port(host)) {
    return false;
  }
  if (has_scheme) {
    return is_host(host) || is_ipv4(host) || is_ipv6(host);
  }
  const bool has_www = start.rfind("www.", 0) == 0;
  return (has_www && host.size() > 4 && is_host(host.substr(4))) || is_common_host(host);
}

// Something, "@", a host with a dot that begins with a letter, digit or "_".
bool is_mail_address(std::string_view text) {
  const std::size_t at = text.rfind('@');
  if (at == kNoPosition || at == 0) {
    return false;
  }
  const std::string_view host = text.substr(at + 1);
  const std::size_t dot = host.rfind('.');
  if (dot == kNoPosition || dot == 0 || dot + 1 == host.size()) {
    return false;
  }
  const std::string_view name = host.substr(0, dot);
  return is_word_character(read_utf8(name, 0).code_point) &&
         all_of(name, [](char32_t c) { return is_word_character(c) || c == U'.' || c == U'-'; }) &&
         all_of(host.substr(dot + 1), is_word_character);
}

// ---- Punctuation around a URL -------------------------------------------------------------------

struct Word {
  std::string_view head;  // opening brackets
  std::string_view middle;
  std::string_view tail;  // closing brackets and punctuation
};

bool starts_with(std::string_view text, std::string_view part) {
  return text.substr(0, part.size()) == part;
}

// Moves the closing brackets that match brackets in the middle from the tail to the middle. The
// middle and the tail are adjacent in one text.
void balance(Word& word, std::string_view open, std::string_view close) {
  const auto count = [](std::string_view text, std::string_view part) {
    return split_at(text, part, -1, SearchFrom::kLeft).size() - 1;
  };
  const std::size_t opened = count(word.middle, open);
  if (opened <= count(word.middle, close)) {
    return;
  }
  std::size_t moved = 0;
  for (std::size_t i = std::min(opened, count(word.tail, close)); i > 0; --i) {
    moved = find_text(word.tail, close, moved) + close.size();
  }
  word.middle = {word.middle.data(), word.middle.size() + moved};
  word.tail.remove_prefix(moved);
}

Word split_word(std::string_view text) {
  Word word;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::string_view rest = text.substr(begin);
    if (rest.front() == '(' || rest.front() == '<') {
      ++begin;
    } else if (starts_with(rest, "&lt;")) {
      begin += 4;
    } else {
      break;
    }
  }
  std::size_t end = text.size();
  while (end > begin) {
    const std::string_view rest = text.substr(begin, end - begin);
    if (std::string_view(")>.,\n").find(rest.back()) != kNoPosition) {
      --end;
    } else if (rest.size() >= 4 && rest.substr(rest.size() - 4) == "&gt;") {
      end -= 4;
    } else {
      break;
    }
  }
  word.head = text.substr(0, begin);
  word.middle = text.substr(begin, end - begin);
  word.tail = text.substr(end);
  balance(word, "(", ")");
  balance(word, "<", ">");
  balance(word, "&lt;", "&gt;");
  return word;
}

// ---- Links --------------------------------------------------------------------------------------

struct LinkOptions {
  const Value* limit = nullptr;  // the most characters of a URL that are shown; null: all
  std::string attributes;        // rel and target
  List schemes;                  // further prefixes of URLs
};

class Linker {
public:
  Linker(Runtime& runtime, LinkOptions options) : runtime_(runtime), options_(std::move(options)) {}

  // Returns what replaces a URL or a mail address; other text is returned unchanged.
  std::string link(std::string_view text) {
    runtime_.budget.allocate(4 * text.size() + options_.attributes.size() + 64);
    if (is_url(text)) {
      const bool has_scheme = starts_with(text, "https://") || starts_with(text, "http://");
      return anchor(has_scheme ? "" : "https://", text, options_.attributes, shown(text));
    }
    if (starts_with(text, "mailto:") && is_mail_address(text.substr(7))) {
      return anchor("", text, "", std::string(text.substr(7)));
    }
    const bool may_be_mail = text.find('@') != kNoPosition && text.front() != '@' &&
                             !starts_with(text, "www.") && text.find(':') == kNoPosition;
    if (may_be_mail && is_mail_address(text)) {
      return anchor("mailto:", text, "", std::string(text));
    }
    return with_schemes(std::string(text));
  }

private:
  static std::string anchor(std::string_view scheme, std::string_view url,
                            std::string_view attributes, const std::string& shown) {
    std::string out = "<a href=\"";
    out.append(scheme).append(url).append("\"").append(attributes).append(">");
    return out.append(shown).append("</a>");
  }

  std::string shown(std::string_view url) {
    if (options_.limit == nullptr) {
      return std::string(url);
    }
    const std::int64_t limit = *options_.limit->integer();
    if (static_cast<std::int64_t>(count_code_points(url)) <= limit) {
      return std::string(url);
    }
    SliceBounds bounds;
    bounds.end = limit;
    return get_slice(runtime_, Value(url), bounds).as_string() + "...";
  }

  std::string with_schemes(std::string text) {
    for (const Value& scheme : options_.schemes) {
      const std::string& prefix = scheme.as_string();
      runtime_.budget.scan(prefix.size() + 1);
      if (text != prefix && starts_with(text, prefix)) {
        runtime_.budget.allocate(2 * text.size() + options_.attributes.size() + 64);
        text = anchor("", text, options_.attributes, text);
      }
    }
    return text;
  }

  Runtime& runtime_;
  LinkOptions options_;
};

// Returns whether this is the beginning of a URL, such as "tel:" or "ftp://".
bool is_scheme(const Value& value) {
  if (!value.is_string()) {
    return false;
  }
  std::string_view text = value.as_string();
  for (int slashes = 0; slashes < 2 && !text.empty() && text.back() == '/'; ++slashes) {
    text.remove_suffix(1);
  }
  if (text.empty() || text.back() != ':') {
    return false;
  }
  text.remove_suffix(1);
  return count_code_points(text) >= 2 && all_of(text, [](char32_t c) {
           return is_word_character(c) || c == U'.' || c == U'+' || c == U'-';
         });
}

const Value* given(const BoundArguments& bound, std::size_t parameter) {
  const Value* value = bound.find(parameter);
  return value == nullptr || value->is_none() ? nullptr : value;
}

// Returns the attribute `rel`: the given words, "noopener", and "nofollow" if it is wanted.
std::string rel_attribute(Runtime& runtime, const BoundArguments& bound) {
  std::set<std::string> words = {"noopener"};
  if (bound.flag(1, false)) {
    words.insert("nofollow");
  }
  if (const Value* rel = given(bound, 3); rel != nullptr && rel->truthy()) {
    if (!rel->is_string()) {
      fail("urlize: rel must be a str");
    }
    runtime.budget.allocate(4 * rel->as_string().size());
    for (const std::string_view word : split_at_space(rel->as_string(), -1, SearchFrom::kLeft)) {
      words.insert(std::string(word));
    }
  }
  std::string joined;
  for (const std::string& word : words) {
    joined.append(joined.empty() ? "" : " ").append(word);
  }
  return " rel=\"" + escaped_text(runtime, joined).as_string() + "\"";
}

LinkOptions options_of(Runtime& runtime, const BoundArguments& bound) {
  LinkOptions options;
  options.limit = given(bound, 0);
  if (options.limit != nullptr && !options.limit->integer()) {
    fail("urlize: trim_url_limit must be an integer");
  }
  options.attributes = rel_attribute(runtime, bound);
  if (const Value* target = given(bound, 2); target != nullptr && target->truthy()) {
    options.attributes += " target=\"" + escaped(runtime, *target).as_string() + "\"";
  }
  if (const Value* schemes = given(bound, 4)) {
    options.schemes = iterate(runtime, *schemes);
  }
  for (const Value& scheme : options.schemes) {
    if (!is_scheme(scheme)) {
      fail("urlize: '" + text_of(runtime, scheme) + "' is not a valid URI scheme prefix.");
    }
  }
  return options;
}

}  // namespace

Value filter_urlize(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("urlize", arguments,
                             {"trim_url_limit", "nofollow", "target", "rel", "extra_schemes"});
  Linker linker(runtime, options_of(runtime, bound));
  const Value text = escaped(runtime, input);
  std::string_view rest = text.as_string();
  std::string out;
  const auto put_word = [&](std::string_view characters) {
    runtime.budget.step();
    const Word word = split_word(characters);
    out.append(word.head);
    out.append(word.middle.empty() ? std::string() : linker.link(word.middle)).append(word.tail);
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < rest.size();) {
    const Utf8Step step = read_utf8(rest, i);
    if (is_space(step.code_point)) {
      put_word(rest.substr(begin, i - begin));
      out.append(rest.substr(i, step.length));
      begin = i + step.length;
    }
    i += step.length;
  }
  put_word(rest.substr(begin));
  return make_string(runtime, std::move(out));
}

}  // namespace tidemill::engines::chat
