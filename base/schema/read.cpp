// SPDX-License-Identifier: Apache-2.0
// Fills objects from configuration trees according to schemas.
//
// Reading takes two passes. The first stores what is written, in the order of the file, so that the
// first mistake in the file is the one reported. The second looks for missing keys and applies the
// rules, which need all values.

#include "base/schema/scalar.hpp"
#include "base/schema/schema.hpp"
#include "base/schema/suggest.hpp"

namespace tidemill::schema {
namespace {

constexpr std::size_t kMaxListItems = 10'000;

std::string line_for(const ConfigLocation& location, const std::string& path,
                     const std::string& problem) {
  std::string line = to_string(location);
  for (const std::string& part : {clipped(path), problem}) {
    line += (line.empty() || part.empty() ? "" : ": ") + part;
  }
  return line;
}

Status problem(const ConfigLocation& location, const std::string& path, const std::string& text) {
  return invalid_argument(line_for(location, path, text));
}

Status mistyped(const ValueSchema& value, const ConfigNode& node, const std::string& path) {
  return problem(node.location, path, mistyped_phrase(value, node));
}

// The message about a node that is not a map of keys and values.
std::string no_keys_phrase(const StructSchema& structure, const ConfigNode& node) {
  const std::string keys = keys_phrase({structure, nullptr});
  const bool names_kind = structure.tag && structure.tag->find(node.text) != nullptr;
  const std::string text = structure.short_for.empty()
                               ? ""
                               : type_phrase(structure.find(structure.short_for)->value) + ", or ";
  return "needs " + text + "keys and values" + (keys.empty() ? "" : " (" + keys + ')') +
         ", found " + found_phrase(node) +
         (names_kind ? "; did you mean {" + structure.tag->name + ": " + node.text + "}?" : "");
}

// Whether `node` is a single value that is written for the whole struct.
bool is_short(const StructSchema& structure, const ConfigNode& node) {
  return !structure.short_for.empty() &&
         (node.kind == ConfigNode::Kind::kPlain || node.kind == ConfigNode::Kind::kQuoted);
}

// `key:` without a value is an empty map.
Status read_tree(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                 void* target) {
  if (node.kind != ConfigNode::Kind::kMap && node.kind != ConfigNode::Kind::kNull) {
    return mistyped(value, node, path);
  }
  ConfigNode& tree = *static_cast<ConfigNode*>(target);
  tree = node;
  tree.kind = ConfigNode::Kind::kMap;
  return {};
}

class Reader {
public:
  Reader(const StructSchema& root, std::vector<std::string>& warnings)
      : root_(root), warnings_(warnings) {}

  Status read(const StructSchema& structure, const ConfigNode& node, const std::string& path,
              void* object);
  Status complete(const StructSchema& structure, const ConfigNode& node, const std::string& path,
                  void* object);

private:
  Status choose(const TagSchema& tag, const ConfigNode& node, const std::string& path,
                void* object);
  Status read_value(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                    void* target);
  Status read_list(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                   void* target);
  Status read_scalar(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                     void* target);
  Status complete_value(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                        void* target);
  Status apply_rules(const StructSchema& structure, const ConfigNode& node, const std::string& path,
                     const void* object);

  const StructSchema& root_;
  const KindSchema* root_kind_ = nullptr;
  std::vector<std::string>& warnings_;
};

Status Reader::choose(const TagSchema& tag, const ConfigNode& node, const std::string& path,
                      void* object) {
  const ConfigEntry* written = node.find(tag.name);
  if (written == nullptr) {
    for (const KindSchema& kind : tag.kinds) {
      if (!kind.implied_by.empty() && node.find(kind.implied_by) != nullptr) {
        kind.choose(object);
        return {};
      }
    }
    return tag.required ? problem(node.location, joined(path, tag.name),
                                  "missing; needs " + kinds_phrase(tag))
                        : Status{};
  }
  const ConfigNode& name = written->value;
  const bool is_text =
      name.kind == ConfigNode::Kind::kPlain || name.kind == ConfigNode::Kind::kQuoted;
  const KindSchema* kind = is_text ? tag.find(name.text) : nullptr;
  if (kind == nullptr) {
    std::vector<std::string> names;
    for (const KindSchema& candidate : tag.kinds) {
      names.push_back(candidate.name);
    }
    const std::string meant = is_text ? closest_name(name.text, names) : "";
    return problem(name.location, joined(path, tag.name),
                   "needs " + kinds_phrase(tag) + ", found " + found_phrase(name) +
                       (meant.empty() ? "" : "; did you mean " + meant + '?'));
  }
  kind->choose(object);
  return {};
}

Status Reader::read(const StructSchema& structure, const ConfigNode& node, const std::string& path,
                    void* object) {
  if (is_short(structure, node)) {
    const FieldSchema& field = *structure.find(structure.short_for);
    return read_value(field.value, node, path, field.member(object));
  }
  if (node.kind != ConfigNode::Kind::kMap) {
    return problem(node.location, path, no_keys_phrase(structure, node));
  }
  if (structure.tag) {
    TIDEMILL_RETURN_IF_ERROR(choose(*structure.tag, node, path, object));
  }
  const KindSchema* kind = structure.kind_of(object);
  if (&structure == &root_) {
    root_kind_ = kind;
  }
  for (const ConfigEntry& entry : node.entries) {
    if (structure.tag && entry.key == structure.tag->name) {
      continue;
    }
    void* owner = object;
    const FieldSchema* field = structure.find(entry.key);
    if (field == nullptr && kind != nullptr && kind->members) {
      field = kind->members->find(entry.key);
      owner = kind->value(object);
    }
    if (field == nullptr) {
      return problem(entry.location, joined(path, entry.key),
                     unknown_key_phrase({root_, root_kind_}, {structure, kind}, path, entry.key));
    }
    TIDEMILL_RETURN_IF_ERROR(
        read_value(field->value, entry.value, joined(path, entry.key), field->member(owner)));
  }
  return {};
}

Status Reader::read_value(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                          void* target) {
  if (value.optional) {
    if (node.kind == ConfigNode::Kind::kNull) {
      value.reset(target);
      return {};
    }
    target = value.emplace(target);
  }
  switch (value.shape) {
    case Shape::kStruct: return read(*value.members, node, path, target);
    case Shape::kList: return read_list(value, node, path, target);
    case Shape::kTree: return read_tree(value, node, path, target);
    default: return read_scalar(value, node, path, target);
  }
}

Status Reader::read_list(const ValueSchema& value, const ConfigNode& node, const std::string& path,
                         void* target) {
  value.clear(target);
  if (node.kind != ConfigNode::Kind::kList) {
    if (!value.one_or_many || node.kind == ConfigNode::Kind::kNull) {
      return mistyped(value, node, path);
    }
    return read_value(*value.item, node, path, value.append(target));
  }
  if (node.items.size() > kMaxListItems) {
    return problem(node.location, path,
                   "needs at most " + std::to_string(kMaxListItems) + " elements, found " +
                       std::to_string(node.items.size()));
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    TIDEMILL_RETURN_IF_ERROR(read_value(
        *value.item, node.items[i], path + '[' + std::to_string(i) + ']', value.append(target)));
  }
  return {};
}

Status Reader::read_scalar(const ValueSchema& value, const ConfigNode& node,
                           const std::string& path, void* target) {
  const std::optional<Scalar> scalar = parse_scalar(value, node);
  if (!scalar || !value.set(target, *scalar)) {
    return mistyped(value, node, path);
  }
  return {};
}

Status Reader::complete(const StructSchema& structure, const ConfigNode& node,
                        const std::string& path, void* object) {
  const auto complete_fields = [&](const StructSchema& owner_schema, void* owner) -> Status {
    for (const FieldSchema& field : owner_schema.fields) {
      const ConfigEntry* entry = node.find(field.name);
      const std::string key = joined(path, field.name);
      if (entry == nullptr && field.required &&
          !(is_short(owner_schema, node) && field.name == owner_schema.short_for)) {
        return problem(node.location, key, "missing; needs " + type_phrase(field.value));
      }
      if (entry == nullptr && field.value.shape == Shape::kList) {
        continue;  // keeps its initial elements
      }
      // A key that was not written counts as an empty map at the location of its parent.
      ConfigNode empty;
      empty.kind = ConfigNode::Kind::kMap;
      empty.location = node.location;
      TIDEMILL_RETURN_IF_ERROR(complete_value(field.value, entry != nullptr ? entry->value : empty,
                                              key, field.member(owner)));
    }
    return {};
  };
  TIDEMILL_RETURN_IF_ERROR(complete_fields(structure, object));
  const KindSchema* kind = structure.kind_of(object);
  if (kind != nullptr && kind->members) {
    void* owner = kind->value(object);
    TIDEMILL_RETURN_IF_ERROR(complete_fields(*kind->members, owner));
    TIDEMILL_RETURN_IF_ERROR(apply_rules(*kind->members, node, path, owner));
  }
  return apply_rules(structure, node, path, object);
}

Status Reader::complete_value(const ValueSchema& value, const ConfigNode& node,
                              const std::string& path, void* target) {
  if (value.optional) {
    target = value.peek(target);
    if (target == nullptr) {
      return {};
    }
  }
  if (value.shape == Shape::kStruct) {
    return complete(*value.members, node, path, target);
  }
  if (value.shape == Shape::kList && value.item->shape == Shape::kStruct) {
    // A single element may be written without brackets, and then has no index.
    const bool listed = node.kind == ConfigNode::Kind::kList;
    for (std::size_t i = 0; i < value.size(target); ++i) {
      const ConfigNode& element = listed && i < node.items.size() ? node.items[i] : node;
      const std::string key = listed ? path + '[' + std::to_string(i) + ']' : path;
      TIDEMILL_RETURN_IF_ERROR(complete_value(*value.item, element, key, value.at(target, i)));
    }
  }
  return {};
}

Status Reader::apply_rules(const StructSchema& structure, const ConfigNode& node,
                           const std::string& path, const void* object) {
  for (const RuleSchema& rule : structure.rules) {
    const std::string text = rule.test(object);
    if (text.empty()) {
      continue;
    }
    // Reports the location of the key, or else of the nearest key above it that is written.
    const ConfigNode* at = &node;
    ConfigLocation location = node.location;
    std::string_view rest = rule.key;
    while (!rest.empty()) {
      const std::size_t dot = rest.find('.');
      const ConfigEntry* entry = at->find(rest.substr(0, dot));
      if (entry == nullptr) {
        break;
      }
      at = &entry->value;
      location = entry->location;
      rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
    }
    if (rule.severity == Severity::kError) {
      return problem(location, joined(path, rule.key), text);
    }
    warnings_.push_back(line_for(location, joined(path, rule.key), text));
  }
  return {};
}

}  // namespace

Status read_struct(const StructSchema& schema, const ConfigNode& root, void* object,
                   std::vector<std::string>& warnings) {
  Reader reader(schema, warnings);
  TIDEMILL_RETURN_IF_ERROR(reader.read(schema, root, "", object));
  return reader.complete(schema, root, "", object);
}

}  // namespace tidemill::schema
