// SPDX-License-Identifier: Apache-2.0
#include "base/schema/node.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/json/json.hpp"

namespace tidemill {
namespace {

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '/' || c == '+';
}

bool is_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

// Whether `text` is read back as text without quotes, also where any value may be written.
bool is_plain_safe(std::string_view text) {
  constexpr std::array<std::string_view, 8> kReserved{"null", "Null", "NULL",  "~",
                                                      "true", "True", "false", "False"};
  return !text.empty() && text.front() != '-' && text.front() != '.' && !is_number(text) &&
         std::all_of(text.begin(), text.end(), is_word_char) &&
         std::find(kReserved.begin(), kReserved.end(), text) == kReserved.end();
}

// A double-quoted YAML scalar. Bytes above 0x7F are UTF-8 and are written unchanged.
std::string yaml_quoted(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20U || byte == 0x7FU) {
      out += "\\x";
      out += kHex[byte >> 4U];
      out += kHex[byte & 0xFU];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string scalar_text(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull: return "null";
    case ConfigNode::Kind::kPlain:
      if (parse_json(node.text).ok()) {
        return node.text;  // a number or a boolean
      }
      break;
    default: break;
  }
  return is_plain_safe(node.text) ? node.text : yaml_quoted(node.text);
}

std::string key_text(const std::string& key) {
  return is_plain_safe(key) ? key : yaml_quoted(key);
}

void append_block(const ConfigNode& map, int depth, std::string& out) {
  const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
  for (const ConfigEntry& entry : map.entries) {
    out += indent + key_text(entry.key) + ":";
    const bool nested = entry.value.kind == ConfigNode::Kind::kMap && !entry.value.entries.empty();
    if (nested) {
      out += '\n';
      append_block(entry.value, depth + 1, out);
    } else {
      out += ' ' + to_flow_text(entry.value) + '\n';
    }
  }
}

}  // namespace

Json json_of(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull: return {};
    case ConfigNode::Kind::kQuoted: return node.text;
    case ConfigNode::Kind::kPlain: {
      Result<Json> value = parse_json(node.text);
      return value.ok() ? std::move(value).value() : Json(node.text);
    }
    case ConfigNode::Kind::kList: {
      Json::Array items;
      for (const ConfigNode& item : node.items) {
        items.push_back(json_of(item));
      }
      return items;
    }
    case ConfigNode::Kind::kMap: {
      Json::Object members;
      for (const ConfigEntry& entry : node.entries) {
        members.push_back({entry.key, json_of(entry.value)});
      }
      return members;
    }
  }
  return {};
}

std::string to_string(const ConfigLocation& location) {
  if (location.source == nullptr) {
    return {};
  }
  return location.line == 0 ? *location.source
                            : *location.source + ':' + std::to_string(location.line);
}

const ConfigEntry* ConfigNode::find(std::string_view key) const {
  const auto hit = std::find_if(entries.begin(), entries.end(),
                                [key](const ConfigEntry& entry) { return entry.key == key; });
  return hit == entries.end() ? nullptr : &*hit;
}

ConfigEntry* ConfigNode::find(std::string_view key) {
  const auto hit = std::find_if(entries.begin(), entries.end(),
                                [key](const ConfigEntry& entry) { return entry.key == key; });
  return hit == entries.end() ? nullptr : &*hit;
}

std::string to_flow_text(const ConfigNode& node) {
  std::string out;
  if (node.kind == ConfigNode::Kind::kList) {
    for (const ConfigNode& item : node.items) {
      out += (out.empty() ? "" : ", ") + to_flow_text(item);
    }
    return '[' + out + ']';
  }
  if (node.kind == ConfigNode::Kind::kMap) {
    for (const ConfigEntry& entry : node.entries) {
      out += (out.empty() ? "" : ", ") + key_text(entry.key) + ": " + to_flow_text(entry.value);
    }
    return '{' + out + '}';
  }
  return scalar_text(node);
}

std::string to_block_text(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::kMap || node.entries.empty()) {
    return to_flow_text(node) + '\n';
  }
  std::string out;
  append_block(node, 0, out);
  return out;
}

}  // namespace tidemill
