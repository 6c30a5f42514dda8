// SPDX-License-Identifier: Apache-2.0
#include "configs/overrides.hpp"

#include <vector>

#include "base/schema/suggest.hpp"
#include "base/text/utf8.hpp"
#include "configs/yaml_tree.hpp"

namespace tidemill::configs {
namespace {

Result<ConfigNode> parse_value(const std::string& text, const Override& argument) {
  constexpr std::string_view kYamlStarts = "[{\"'";
  ConfigNode node;
  if (kYamlStarts.find(text.front()) != std::string_view::npos) {
    TIDEMILL_ASSIGN_OR_RETURN(node, parse_yaml(text, argument.location, YamlLines::kNone));
    return node;
  }
  node.location.source = std::make_shared<const std::string>(argument.location);
  if (text == "null" || text == "~") {
    return node;
  }
  node.kind = ConfigNode::Kind::kPlain;
  node.text = text;
  return node;
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    words.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  words.push_back(path.substr(begin));
  return words;
}

}  // namespace

Status apply_overrides(std::span<const Override> overrides, ConfigNode& root) {
  for (const Override& argument : overrides) {
    const auto refused = [&argument](const std::string& problem) {
      return invalid_argument(argument.location + ": " + problem);
    };
    if (find_invalid_utf8(argument.text)) {
      return refused("is not UTF-8 text");
    }
    if (argument.text.find('\0') != std::string::npos) {
      return refused("contains a NUL character");  // as YAML is refused, which it may be printed as
    }
    const std::size_t equals = argument.text.find('=');
    if (equals == std::string::npos) {
      return refused("needs key=value, found " + schema::clipped(argument.text));
    }
    const std::string path = argument.text.substr(0, equals);
    const std::vector<std::string> words = split(path);
    if (words.size() > static_cast<std::size_t>(kMaxYamlDepth)) {
      return refused("names a key deeper than " + std::to_string(kMaxYamlDepth) + " levels");
    }
    if (equals + 1 == argument.text.size()) {
      return refused(schema::clipped(path) +
                     ": has no value; null unsets a key, and \"\" is an empty text");
    }
    TIDEMILL_ASSIGN_OR_RETURN(ConfigNode value,
                              parse_value(argument.text.substr(equals + 1), argument));
    const ConfigLocation location{std::make_shared<const std::string>(argument.location), 0};
    ConfigNode* at = &root;
    ConfigEntry* entry = nullptr;
    std::string walked;
    for (const std::string& word : words) {
      if (word.empty()) {
        return refused("needs key=value, found " + schema::clipped(argument.text));
      }
      if (at->kind == ConfigNode::Kind::kNull) {  // `key:` without a value, or a new key
        at->kind = ConfigNode::Kind::kMap;
        at->location = location;
      }
      // `reward: {...}` means `reward: [{...}]`, and run.yaml holds the list.
      if (at->kind == ConfigNode::Kind::kList && at->items.size() == 1 &&
          at->items.front().kind == ConfigNode::Kind::kMap) {
        at = &at->items.front();
      }
      if (at->kind == ConfigNode::Kind::kList || word.ends_with(']')) {
        const std::string list =
            at->kind == ConfigNode::Kind::kList
                ? walked
                : walked + (walked.empty() ? "" : ".") + word.substr(0, word.find('['));
        return refused(schema::clipped(path) +
                       ": cannot set one element of a list; give the whole list: " +
                       schema::clipped(list) + "=[...]");
      }
      if (at->kind != ConfigNode::Kind::kMap) {
        return refused(
            schema::clipped(path) + ": " + schema::clipped(walked) +
            " has no keys in this run; give its whole value: " + schema::clipped(walked) + "=...");
      }
      if (at->find(word) == nullptr) {
        at->entries.push_back({word, location, {}});
      }
      walked += (walked.empty() ? "" : ".") + word;
      entry = at->find(word);
      at = &entry->value;
    }
    entry->value = std::move(value);
    entry->location = location;  // errors in the value then name the argument
  }
  return {};
}

}  // namespace tidemill::configs
