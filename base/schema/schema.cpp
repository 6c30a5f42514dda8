// SPDX-License-Identifier: Apache-2.0
#include "base/schema/schema.hpp"

namespace tidemill {

schema::ValueSchema& Field::scalar() {
  schema::ValueSchema* value = &field_.value;
  while (value->item != nullptr) {
    value = value->item.get();
  }
  return *value;
}

Field& Field::range(double low, double high) {
  TIDEMILL_CHECK(low <= high) << field_.name;
  scalar().limits = {low, high};
  return *this;
}

Field& Field::at_least(double low) {
  scalar().limits.low = low;
  return *this;
}

Field& Field::above(double low) {
  scalar().limits.low = low;
  scalar().limits.low_excluded = true;
  return *this;
}

Field& Field::at_most(double high) {
  scalar().limits.high = high;
  return *this;
}

Field& Field::or_zero() {
  TIDEMILL_CHECK(scalar().shape == schema::Shape::kNumber) << field_.name;
  scalar().limits.or_zero = true;
  return *this;
}

Field& Field::unit(std::string unit) {
  scalar().unit = std::move(unit);
  return *this;
}

Field& Field::required() {
  field_.required = true;
  return *this;
}

Field& Field::also_called(std::vector<std::string> names) {
  field_.also_called = std::move(names);
  return *this;
}

Field& Field::one_or_many() {
  TIDEMILL_CHECK(field_.value.shape == schema::Shape::kList) << field_.name;
  field_.value.one_or_many = true;
  return *this;
}

namespace schema {
namespace {

ConfigNode leaf(ConfigNode::Kind kind, std::string text = {}) {
  ConfigNode node;
  node.kind = kind;
  node.text = std::move(text);
  return node;
}

// Prints only the value of the `short_for` key if every other key has its initial value.
ConfigNode print_shortest(const StructSchema& schema, void* object) {
  ConfigNode map = print_struct(schema, object);
  if (schema.short_for.empty()) {
    return map;
  }
  const std::shared_ptr<void> fresh = schema.make();
  const ConfigNode initial = print_struct(schema, fresh.get());
  const bool plain = std::all_of(map.entries.begin(), map.entries.end(), [&](const auto& entry) {
    return entry.key == schema.short_for ||
           to_flow_text(entry.value) == to_flow_text(initial.find(entry.key)->value);
  });
  return plain ? map.find(schema.short_for)->value : map;
}

ConfigNode print_value(const ValueSchema& value, void* source);

ConfigNode print_scalar(const ValueSchema& value, const void* source) {
  const Scalar scalar = value.get(source);
  switch (value.shape) {
    case Shape::kBool:
      return leaf(ConfigNode::Kind::kPlain, std::get<bool>(scalar) ? "true" : "false");
    case Shape::kInteger:
      return leaf(ConfigNode::Kind::kPlain, std::to_string(std::get<std::int64_t>(scalar)));
    case Shape::kNumber:
      return leaf(ConfigNode::Kind::kPlain, number_text(std::get<double>(scalar)));
    case Shape::kEnum:
      for (const EnumName& name : value.names) {
        if (name.value == std::get<std::int64_t>(scalar)) {
          return leaf(ConfigNode::Kind::kPlain, name.name);
        }
      }
      return leaf(ConfigNode::Kind::kNull);
    default: return leaf(ConfigNode::Kind::kQuoted, std::get<std::string>(scalar));
  }
}

void print_fields(const StructSchema& structure, void* object, ConfigNode& map) {
  for (const FieldSchema& field : structure.fields) {
    map.entries.push_back({field.name, {}, print_value(field.value, field.member(object))});
  }
}

ConfigNode print_value(const ValueSchema& value, void* source) {
  if (value.optional) {
    source = value.peek(source);
    if (source == nullptr) {
      return leaf(ConfigNode::Kind::kNull);
    }
  }
  if (value.shape == Shape::kStruct) {
    return print_shortest(*value.members, source);
  }
  if (value.shape == Shape::kTree) {
    return *static_cast<const ConfigNode*>(source);
  }
  if (value.shape != Shape::kList) {
    return print_scalar(value, source);
  }
  ConfigNode list = leaf(ConfigNode::Kind::kList);
  for (std::size_t i = 0; i < value.size(source); ++i) {
    list.items.push_back(print_value(*value.item, value.at(source, i)));
  }
  return list;
}

}  // namespace

ConfigNode print_struct(const StructSchema& schema, void* object) {
  ConfigNode map = leaf(ConfigNode::Kind::kMap);
  const KindSchema* kind = schema.kind_of(object);
  if (kind != nullptr) {
    map.entries.push_back({schema.tag->name, {}, leaf(ConfigNode::Kind::kQuoted, kind->name)});
  }
  print_fields(schema, object, map);
  if (kind != nullptr && kind->members) {
    print_fields(*kind->members, kind->value(object), map);
  }
  return map;
}

Status add_to_tag(StructSchema& structure, KindSchema kind) {
  TagSchema& tag = *structure.tag;
  if (tag.find(kind.name) != nullptr) {
    return invalid_argument(tag.name + " " + kind.name + ": is already defined");
  }
  if (kind.members) {
    for (const FieldSchema& field : kind.members->fields) {
      if (field.name == tag.name || structure.find(field.name) != nullptr) {
        return invalid_argument(tag.name + " " + kind.name + ": redefines the key " + field.name +
                                " that all kinds share");
      }
    }
  }
  if (tag.set_chosen) {  // a preset, whose name overrides the one among its values
    kind.choose = [choose = kind.choose, name = kind.name, set = tag.set_chosen](void* object) {
      choose(object);
      set(object, name);
    };
  }
  tag.kinds.push_back(std::move(kind));
  return {};
}

}  // namespace schema
}  // namespace tidemill
