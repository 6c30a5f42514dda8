// SPDX-License-Identifier: Apache-2.0
#include "configs/yaml_tree.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "base/schema_suggest.hpp"

namespace tidemill::configs {
namespace {

using Kind = ConfigNode::Kind;

// Ends parsing; caught below, in this file.
struct Refusal {
  int line;  // counts from 0
  std::string problem;
};

constexpr const char* kAnchors = "anchors (&name) are not taken; quote a text that starts with &";
constexpr const char* kAliases = "aliases (*name) are not taken; quote a text that starts with *";
constexpr const char* kTags = "tags (!name) are not taken; quote a text that starts with !";

constexpr const char* kNoBreakSpace = "\xC2\xA0";

// What is wrong with the character at `mark`, if it starts an anchor, an alias or a tag.
const char* property_at(std::string_view text, const YAML::Mark& mark) {
  const auto at = static_cast<std::size_t>(mark.pos);
  switch (mark.pos >= 0 && at < text.size() ? text[at] : ' ') {
    case '&': return kAnchors;
    case '*': return kAliases;
    case '!': return kTags;
    default: return "";
  }
}

// Builds the tree from parser events, which name anchors, aliases and tags before anything could
// expand them.
class TreeBuilder final : public YAML::EventHandler {
public:
  TreeBuilder(std::string_view text, std::shared_ptr<const std::string> source, YamlLines lines)
      : text_(text), source_(std::move(source)), lines_(lines) {}

  [[nodiscard]] bool has_document() const { return documents_ > 0; }
  [[nodiscard]] ConfigNode take_root() { return std::move(root_); }
  [[nodiscard]] ConfigPlace place(int line) const {
    return {source_, lines_ == YamlLines::kNumbered ? line + 1 : 0};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      throw Refusal{mark.line, "holds a second document; one file is one document"};
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_properties(mark, "?", anchor);
    ConfigNode node;
    // The mark of a value that is not there is the next token's.
    const bool follows_key = !open_.empty() && open_.back().key.has_value();
    node.place = follows_key ? open_.back().key_place : place(mark.line);
    add(std::move(node), mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    refuse_properties(mark, "", YAML::NullAnchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_properties(mark, tag, anchor);
    if (tag == "!" && !quote_is_closed(mark)) {
      throw Refusal{mark.line, "a quote is not closed"};
    }
    if (value.find('\0') != std::string::npos) {
      throw Refusal{mark.line, "holds a NUL character"};
    }
    if (tag != "!" && value.find(kNoBreakSpace) != std::string::npos) {
      throw Refusal{mark.line, "holds a no-break space, which is none to YAML; write a plain one"};
    }
    ConfigNode node;
    node.kind = tag == "!" ? Kind::kQuoted : Kind::kPlain;
    node.place = place(mark.line);
    node.text = value;
    add(std::move(node), mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

private:
  // A list or map whose end has not come yet.
  struct Open {
    ConfigNode node;
    std::optional<std::string> key;  // of a map, once its key has come and its value has not
    ConfigPlace key_place;
    std::set<std::string> keys;
  };

  // Properties stand before what they belong to, so a node that has some is marked where they are.
  // The character there tells even where the library drops a tag, as it does before `null`.
  void refuse_properties(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    std::string problem = property_at(text_, mark);
    if (problem.empty() && anchor != YAML::NullAnchor) {
      problem = kAnchors;
    }
    if (problem.empty() && !(tag.empty() || tag == "?" || tag == "!")) {
      problem = kTags;
    }
    if (!problem.empty()) {
      throw Refusal{mark.line, problem};
    }
  }

  // The library takes the end of the file for the end of a quote.
  [[nodiscard]] bool quote_is_closed(const YAML::Mark& mark) const {
    const auto start = static_cast<std::size_t>(mark.pos);
    const char quote = start < text_.size() ? text_[start] : ' ';
    if (quote != '"' && quote != '\'') {
      return true;  // a block of lines
    }
    for (std::size_t i = start + 1; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        const bool doubled = quote == '\'' && i + 1 < text_.size() && text_[i + 1] == quote;
        if (!doubled) {
          return true;
        }
        ++i;
      }
    }
    return false;
  }

  void open(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_properties(mark, tag, anchor);
    refuse_as_key(mark);
    if (open_.size() >= static_cast<std::size_t>(kMaxYamlDepth)) {
      throw Refusal{mark.line,
                    "is nested deeper than " + std::to_string(kMaxYamlDepth) + " levels"};
    }
    count(mark);
    Open& opened = open_.emplace_back();
    opened.node.kind = kind;
    opened.node.place = place(mark.line);
  }

  void close() {
    ConfigNode node = std::move(open_.back().node);
    open_.pop_back();
    attach(std::move(node));
  }

  void add(ConfigNode node, const YAML::Mark& mark) {
    count(mark);
    if (open_.empty() || open_.back().node.kind != Kind::kMap || open_.back().key) {
      attach(std::move(node));
      return;
    }
    if (node.kind == Kind::kNull) {
      throw Refusal{mark.line, "holds a value without a key"};
    }
    if (node.kind == Kind::kPlain && node.text == "<<") {
      throw Refusal{mark.line, "merge keys (<<) are not taken"};
    }
    Open& map = open_.back();
    if (!map.keys.insert(node.text).second) {
      const int first = map.node.find(node.text)->place.line;
      throw Refusal{mark.line, path_to(node.text) + ": is given twice" +
                                   (first > 0 ? ", first in line " + std::to_string(first) : "")};
    }
    map.key = std::move(node.text);
    map.key_place = node.place;
  }

  void attach(ConfigNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == Kind::kList) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    parent.node.entries.push_back({std::move(*parent.key), parent.key_place, std::move(node)});
    parent.key.reset();
  }

  void refuse_as_key(const YAML::Mark& mark) const {
    if (!open_.empty() && open_.back().node.kind == Kind::kMap && !open_.back().key) {
      throw Refusal{mark.line, "a key needs to be a word (or a bracket is not closed)"};
    }
  }

  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxYamlValues) {
      throw Refusal{mark.line, "holds more than " + std::to_string(kMaxYamlValues) + " values"};
    }
  }

  [[nodiscard]] std::string path_to(const std::string& key) const {
    std::string path;
    for (const Open& open : open_) {
      if (open.node.kind == Kind::kList) {
        path += '[' + std::to_string(open.node.items.size()) + ']';
      } else if (open.key) {
        path += (path.empty() ? "" : ".") + *open.key;
      }
    }
    return schema::clipped(path + (path.empty() ? "" : ".") + key);
  }

  std::string_view text_;
  std::shared_ptr<const std::string> source_;
  YamlLines lines_;
  ConfigNode root_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
  int documents_ = 0;
};

// The length of the UTF-8 character at the start of `text`, or 0 if it is broken.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80U                    ? 1
                             : lead >= 0xC2U && lead < 0xE0U ? 2
                             : (lead & 0xF0U) == 0xE0U       ? 3
                             : lead >= 0xF0U && lead < 0xF5U ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  const bool overlong = (lead == 0xE0U && byte(1) < 0xA0U) || (lead == 0xF0U && byte(1) < 0x90U);
  const bool surrogate = lead == 0xEDU && byte(1) >= 0xA0U;
  const bool too_large = lead == 0xF4U && byte(1) >= 0x90U;
  return overlong || surrogate || too_large ? 0 : length;
}

// Text with plain line ends and without byte order mark, or the line of the first byte that is no
// text.
struct Cleaned {
  std::string text;
  int broken_line = -1;
};

Cleaned clean(std::string_view raw) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (raw.starts_with(kByteOrderMark)) {
    raw.remove_prefix(kByteOrderMark.size());
  }
  Cleaned cleaned;
  cleaned.text.reserve(raw.size());
  int line = 0;
  while (!raw.empty()) {
    if (raw.starts_with("\r\n")) {
      raw.remove_prefix(1);
    }
    const char c = raw.front();
    const std::size_t length = utf8_length(raw);
    const bool control = static_cast<unsigned char>(c) < 0x20U && c != '\n' && c != '\t';
    if (length == 0 || control || c == 0x7F) {
      cleaned.broken_line = line;
      return cleaned;
    }
    line += c == '\n' ? 1 : 0;
    cleaned.text.append(raw.substr(0, length));
    raw.remove_prefix(length);
  }
  return cleaned;
}

// One line of a library's message.
std::string first_line(const std::string& message) {
  return schema::clipped(message.substr(0, message.find('\n')));
}

// What the library's words come to for somebody who wrote a run's file.
std::string advice(std::string_view text, const YAML::Exception& error) {
  const std::string_view message = error.msg;
  const std::size_t at =
      std::min(static_cast<std::size_t>(std::max(error.mark.pos, 0)), text.size());
  const std::size_t line_begin = text.rfind('\n', at == 0 ? 0 : at - 1) + 1;
  const std::string_view before = text.substr(line_begin, at - std::min(line_begin, at));
  if (before.starts_with('\t') || text.substr(line_begin).starts_with('\t')) {
    return "; a tab indents, which only blanks may";
  }
  if (message.find("flow not found") != std::string_view::npos) {
    return "; a bracket is not closed, or a text with brackets in it is not quoted";
  }
  if (message.find("unknown escape") != std::string_view::npos) {
    return "; between single quotes a backslash is a backslash";
  }
  if (message.find("unknown token") != std::string_view::npos) {
    return "; a text that starts with " + std::string(text.substr(at, 1)) + " needs quotes";
  }
  if (message.find("end of ") == 0) {
    const bool indents = before.find_first_not_of(' ') == std::string_view::npos;
    return indents ? "; it is indented unlike the lines above"
                   : "; a text that starts with a bracket or a quote needs quotes around all of it";
  }
  if (message == "illegal map value") {
    return "; this line may be indented too far, the one before lack its colon, or a text with "
           "`: ` its quotes";
  }
  return "";
}

}  // namespace

Result<ConfigNode> parse_yaml(std::string_view text, const std::string& source, YamlLines lines) {
  if (text.size() > kMaxYamlBytes) {
    return invalid_argument(source + ": is larger than 1 MiB");
  }
  const Cleaned cleaned = clean(text);
  TreeBuilder builder(cleaned.text, std::make_shared<const std::string>(source), lines);
  const auto refused = [&builder](int line, const std::string& problem) {
    return invalid_argument(to_string(builder.place(line)) + ": " + problem);
  };
  if (cleaned.broken_line >= 0) {
    return refused(cleaned.broken_line, "is not UTF-8 text");
  }
  try {
    std::istringstream stream(cleaned.text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal& refusal) {
    return refused(refusal.line, refusal.problem);
  } catch (const YAML::Exception& error) {
    // An alias of nothing, as in `train: *.jsonl`, is an error of the library's own.
    const std::string property = property_at(cleaned.text, error.mark);
    const std::string problem =
        property.empty() ? "is not YAML: " + first_line(error.msg) + advice(cleaned.text, error)
                         : property;
    return error.mark.is_null() ? invalid_argument(source + ": " + problem)
                                : refused(error.mark.line, problem);
  } catch (const std::exception& error) {
    return invalid_argument(source + ": is not YAML: " + first_line(error.what()));
  }
  ConfigNode root = builder.take_root();
  if (!builder.has_document() || root.kind == Kind::kNull) {
    return invalid_argument(source + ": is empty");
  }
  // What is missing at the top level is missing in the file, not in its first line.
  root.place.line = 0;
  return root;
}

}  // namespace tidemill::configs
