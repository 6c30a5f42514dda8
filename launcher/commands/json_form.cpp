// SPDX-License-Identifier: Apache-2.0
#include "launcher/commands/json_form.hpp"

namespace tidemill::launcher {

nlohmann::ordered_json to_json(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull: return nullptr;
    case ConfigNode::Kind::kQuoted: return node.text;
    case ConfigNode::Kind::kPlain: {
      nlohmann::ordered_json value =
          nlohmann::ordered_json::parse(node.text, nullptr, /*allow_exceptions=*/false);
      return value.is_discarded() ? nlohmann::ordered_json(node.text) : value;
    }
    case ConfigNode::Kind::kList: {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (const ConfigNode& item : node.items) {
        list.push_back(to_json(item));
      }
      return list;
    }
    case ConfigNode::Kind::kMap: {
      nlohmann::ordered_json map = nlohmann::ordered_json::object();
      for (const ConfigEntry& entry : node.entries) {
        map[entry.key] = to_json(entry.value);
      }
      return map;
    }
  }
  return nullptr;
}

}  // namespace tidemill::launcher
