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

#include "base/schema/suggest.hpp"

namespace tidemill::configs {
namespace {

using Kind = ConfigNode::Kind;

// Thrown to end parsing. `parse_yaml` catches it.
struct Refusal {
  int line;  // counts from 0
  std::string problem;
};

constexpr const char* kAnchors = "anchors (&name) are not supported; quote text that starts with &";
constexpr const char* kAliases = "aliases (*name) are not supported; quote text that starts with *";
constexpr const char* kTags = "tags (!name) are not supported; quote text that starts with !";

constexpr const char* kNoBreakSpace = "\xC2\xA0";

// Returns the error message if the character at `mark` starts an anchor, an alias or a tag, else
// "".
const char* property_at(std::string_view text, const YAML::Mark& mark) {
  const auto at = static_cast<std::size_t>(mark.pos);
  switch (mark.pos >= 0 && at < text.size() ? text[at] : ' ') {
    case '&': return kAnchors;
    case '*': return kAliases;
    case '!': return kTags;
    default: return "";
  }
}

// Builds the tree from parser events. These report anchors, aliases and tags before the library
// could expand anything.
class TreeBuilder final : public YAML::EventHandler {
public:
  TreeBuilder(std::string_view text, std::shared_ptr<const std::string> source, YamlLines lines)
      : text_(text), source_(std::move(source)), lines_(lines) {}

  [[nodiscard]] bool has_document() const { return documents_ > 0; }
  [[nodiscard]] ConfigNode take_root() { return std::move(root_); }
  [[nodiscard]] ConfigLocation location(int line) const {
    return {source_, lines_ == YamlLines::kNumbered ? line + 1 : 0};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      throw Refusal{mark.line, "contains a second document; a file must contain only one"};
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_properties(mark, "?", anchor);
    ConfigNode node;
    // The mark of a missing value is that of the next token, so its key gives the location.
    const bool follows_key = !open_.empty() && open_.back().key.has_value();
    node.location = follows_key ? open_.back().key_location : location(mark.line);
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
      throw Refusal{mark.line, "contains a NUL character"};
    }
    if (tag != "!" && value.find(kNoBreakSpace) != std::string::npos) {
      throw Refusal{mark.line,
                    "contains a no-break space, which is not a space in YAML; use a normal one"};
    }
    ConfigNode node;
    node.kind = tag == "!" ? Kind::kQuoted : Kind::kPlain;
    node.location = location(mark.line);
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
  // A list or map that has not ended yet.
  struct Open {
    ConfigNode node;
    std::optional<std::string> key;  // of a map: the key whose value is expected next
    ConfigLocation key_location;
    std::set<std::string> keys;
  };

  // Properties precede their node, so the mark of a node that has some points to the first of them.
  // Looking at that character also finds tags that the library drops, as it does before `null`.
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

  // The library accepts the end of the file as the end of a quote.
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
    opened.node.location = location(mark.line);
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
      throw Refusal{mark.line, "contains a value without a key"};
    }
    if (node.kind == Kind::kPlain && node.text == "<<") {
      throw Refusal{mark.line, "merge keys (<<) are not supported"};
    }
    Open& map = open_.back();
    if (!map.keys.insert(node.text).second) {
      const int first = map.node.find(node.text)->location.line;
      throw Refusal{mark.line, path_to(node.text) + ": is given twice" +
                                   (first > 0 ? ", first on line " + std::to_string(first) : "")};
    }
    map.key = std::move(node.text);
    map.key_location = node.location;
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
    parent.node.entries.push_back({std::move(*parent.key), parent.key_location, std::move(node)});
    parent.key.reset();
  }

  void refuse_as_key(const YAML::Mark& mark) const {
    if (!open_.empty() && open_.back().node.kind == Kind::kMap && !open_.back().key) {
      throw Refusal{mark.line, "a key must be a word (or a bracket is not closed)"};
    }
  }

  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxYamlValues) {
      throw Refusal{mark.line, "contains more than " + std::to_string(kMaxYamlValues) + " values"};
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

// Returns the length of the UTF-8 character at the start of `text`, or 0 if it is invalid.
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

// Text with LF line ends and without byte order mark. If a byte is not valid text, `problem` says
// why, and `broken_line` is its line, counted from 0.
struct Cleaned {
  std::string text;
  std::string problem;
  int broken_line = -1;
};

// Says why the character that `text` begins with cannot be in a file, or returns "".
std::string character_problem(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead == '\r') {
    return "contains a carriage return without a line feed; end lines with LF or CR LF";
  }
  if (lead == 0) {
    return "contains a NUL character";
  }
  if ((lead < 0x20U && lead != '\n' && lead != '\t') || lead == 0x7FU) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    return std::string("contains the control character U+00") + kDigits[lead >> 4U] +
           kDigits[lead & 0xFU];
  }
  return utf8_length(text) == 0 ? "is not UTF-8 text" : "";
}

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
    cleaned.problem = character_problem(raw);
    if (!cleaned.problem.empty()) {
      cleaned.broken_line = line;
      return cleaned;
    }
    line += c == '\n' ? 1 : 0;
    cleaned.text.append(raw.substr(0, length));
    raw.remove_prefix(length);
  }
  return cleaned;
}

// Returns the first line of a library's message.
std::string first_line(const std::string& message) {
  return schema::clipped(message.substr(0, message.find('\n')));
}

// Returns advice on the library's error for the author of a configuration file, or "".
std::string advice(std::string_view text, const YAML::Exception& error) {
  const std::string_view message = error.msg;
  const std::size_t at =
      std::min(static_cast<std::size_t>(std::max(error.mark.pos, 0)), text.size());
  const std::size_t line_begin = text.rfind('\n', at == 0 ? 0 : at - 1) + 1;
  const std::string_view before = text.substr(line_begin, at - std::min(line_begin, at));
  if (before.starts_with('\t') || text.substr(line_begin).starts_with('\t')) {
    return "; indent with spaces, not tabs";
  }
  if (message.find("flow not found") != std::string_view::npos) {
    return "; a bracket is not closed, or text with brackets is not quoted";
  }
  if (message.find("unknown escape") != std::string_view::npos) {
    return "; use single quotes, in which a backslash is literal";
  }
  if (message.find("unknown token") != std::string_view::npos) {
    return "; quote text that starts with " + std::string(text.substr(at, 1));
  }
  if (message.find("end of ") == 0) {
    const bool indents = before.find_first_not_of(' ') == std::string_view::npos;
    return indents ? "; its indentation does not match the lines above"
                   : "; quote the whole text if it starts with a bracket or a quote";
  }
  if (message == "illegal map value") {
    return "; this line may be indented too far, the line before may lack a colon, or text with "
           "`: ` may lack quotes";
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
    return invalid_argument(to_string(builder.location(line)) + ": " + problem);
  };
  if (cleaned.broken_line >= 0) {
    return refused(cleaned.broken_line, cleaned.problem);
  }
  try {
    std::istringstream stream(cleaned.text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal& refusal) {
    return refused(refusal.line, refusal.problem);
  } catch (const YAML::Exception& error) {
    // The library itself refuses an alias without an anchor, as in `train: *.jsonl`.
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
  // Errors about missing top-level keys name the file, not its first line.
  root.location.line = 0;
  return root;
}

}  // namespace tidemill::configs
