// SPDX-License-Identifier: Apache-2.0
#include "base/schema/json_schema.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/schema/reference.hpp"
#include "base/schema/schema.hpp"

namespace tidemill {
namespace {

using schema::FieldSchema;
using schema::KindSchema;
using schema::Scalar;
using schema::Shape;
using schema::StructSchema;
using schema::TagSchema;
using schema::ValueSchema;

// Writes whole numbers without an exponent: 1000000, not 1e6.
Json number_json(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json scalar_json(const ValueSchema& value, const Scalar& scalar) {
  if (value.shape == Shape::kEnum) {
    for (const schema::EnumName& name : value.names) {
      if (name.value == std::get<std::int64_t>(scalar)) {
        return name.name;
      }
    }
    return {};
  }
  return std::visit([](const auto& held) { return Json(held); }, scalar);
}

// The value that `source` holds, as a file would write it. Null for structs and for nonempty lists
// of structs, whose keys have defaults of their own.
Json value_json(const ValueSchema& value, void* source) {
  if (value.optional) {
    source = value.peek(source);
    if (source == nullptr) {
      return {};
    }
  }
  if (value.shape == Shape::kStruct) {
    return {};
  }
  if (value.shape == Shape::kTree) {
    return json_of(*static_cast<const ConfigNode*>(source));
  }
  if (value.shape != Shape::kList) {
    return scalar_json(value, value.get(source));
  }
  Json::Array items;
  for (std::size_t i = 0; i < value.size(source); ++i) {
    if (value.item->shape == Shape::kStruct) {
      return {};
    }
    items.push_back(value_json(*value.item, value.at(source, i)));
  }
  return items;
}

// Whether a file must have `field`, because the field is required or a key inside it is.
bool is_needed(const FieldSchema& field);

bool needs_a_key(const StructSchema& structure) {
  const auto any_needed = [](const StructSchema& one) {
    return std::any_of(one.fields.begin(), one.fields.end(), is_needed);
  };
  if (any_needed(structure) || !structure.tag) {
    return any_needed(structure);
  }
  const std::shared_ptr<void> initial = structure.make();
  const KindSchema* kind = structure.kind_of(initial.get());
  return structure.tag->required ||
         (kind != nullptr && kind->members && any_needed(*kind->members));
}

bool is_needed(const FieldSchema& field) {
  const ValueSchema& value = field.value;
  return field.required ||
         (value.shape == Shape::kStruct && !value.optional && needs_a_key(*value.members));
}

// The keys that an object may have.
struct Keys {
  Json::Object properties;
  Json::Array required;
};

class Writer {
public:
  explicit Writer(const StructSchema& root) {
    for (const KeyReference& key : list_keys(root)) {
      known_.insert(identity(key.path, key.when));
    }
  }

  // `object` holds the default values.
  Json::Object structure(const StructSchema& structure, const std::string& prefix, void* object) {
    const bool has_kinds = structure.tag && structure.tag->one_of;
    if (!has_kinds) {
      Keys keys;
      if (structure.tag) {
        keys.properties.push_back({structure.tag->name, tag_names(*structure.tag, object)});
      }
      add_fields(structure, prefix, object, keys);
      Json::Object out{{"type", "object"}};
      close(std::move(keys), out);
      return out;
    }
    const TagSchema& tag = *structure.tag;
    Json::Array alternatives;
    for (const KindSchema& kind : tag.kinds) {
      alternatives.push_back(alternative(structure, kind, prefix, object));
    }
    if (!tag.required && tag.chosen(object).empty()) {
      Keys keys;
      add_fields(structure, prefix, object, keys);
      Json::Object none;
      close(std::move(keys), none);
      alternatives.push_back(std::move(none));
    }
    return {{"type", "object"},
            {"properties", Json::Object{{tag.name, tag_names(tag, object)}}},
            {"anyOf", std::move(alternatives)}};
  }

private:
  static std::string identity(const std::string& path, const std::vector<std::string>& when) {
    std::string out = path;
    for (const std::string& choice : when) {
      out += '\n' + choice;
    }
    return out;
  }

  static void close(Keys keys, Json::Object& out) {
    out.push_back({"properties", std::move(keys.properties)});
    if (!keys.required.empty()) {
      out.push_back({"required", std::move(keys.required)});
    }
    out.push_back({"additionalProperties", false});
  }

  // The schema of a struct of one kind.
  Json::Object alternative(const StructSchema& structure, const KindSchema& kind,
                           const std::string& prefix, void* object) {
    const TagSchema& tag = *structure.tag;
    Keys keys;
    keys.properties = {{tag.name, Json::Object{{"const", kind.name}, {"description", kind.help}}}};
    const bool by_default = !tag.required && tag.chosen(object) == kind.name;
    if (!by_default && kind.implied_by.empty()) {
      keys.required.push_back(tag.name);
    }
    add_fields(structure, prefix, object, keys);
    if (kind.members) {
      const std::shared_ptr<void> chosen = structure.make();
      kind.choose(chosen.get());
      when_.push_back(prefix + tag.name + ": " + kind.name);
      add_fields(*kind.members, prefix, kind.value(chosen.get()), keys);
      when_.pop_back();
    }
    Json::Object out;
    close(std::move(keys), out);
    if (!by_default && !kind.implied_by.empty()) {
      out.push_back(
          {"anyOf", Json::Array{Json::Object{{"required", Json::Array{tag.name}}},
                                Json::Object{{"required", Json::Array{kind.implied_by}}}}});
    }
    return out;
  }

  static Json tag_names(const TagSchema& tag, void* object) {
    Json::Array names;
    std::string help = tag.help + '\n';
    for (const KindSchema& kind : tag.kinds) {
      names.push_back(kind.name);
      help += "\n- " + kind.name + ": " + kind.help;
    }
    Json::Object out{{"description", std::move(help)}, {"enum", std::move(names)}};
    if (const std::string chosen = tag.chosen(object); !tag.required && !chosen.empty()) {
      out.push_back({"default", chosen});
    }
    return out;
  }

  void add_fields(const StructSchema& structure, const std::string& prefix, void* object,
                  Keys& keys) {
    for (const FieldSchema& field : structure.fields) {
      void* member = field.member(object);
      if (known_.count(identity(prefix + field.name, when_)) == 0) {
        // An excluded key: a rule refuses every value but the one that a printed run has.
        keys.properties.push_back(
            {field.name, Json::Object{{"const", value_json(field.value, member)}}});
        continue;
      }
      if (is_needed(field)) {
        keys.required.push_back(field.name);
      }
      // `object` holds the defaults and must not change, so values are tried on another object.
      const std::shared_ptr<void> scratch = structure.make();
      Json::Object described{{"description", description(field)}};
      for (Json::Member& part :
           value(field.value, prefix + field.name, member, field.member(scratch.get()))) {
        described.push_back(std::move(part));
      }
      if (const Json initial = value_json(field.value, member);
          !field.required && !initial.is_null()) {
        described.push_back({"default", initial});
      }
      keys.properties.push_back({field.name, std::move(described)});
    }
  }

  static std::string description(const FieldSchema& field) {
    const ValueSchema& scalar = field.value.item ? *field.value.item : field.value;
    std::string out = field.help;
    if (!scalar.unit.empty()) {
      out += " Unit: " + scalar.unit + (scalar.unit == "bytes" ? ", or e.g. 64MiB." : ".");
    }
    for (const schema::EnumName& name : scalar.names) {
      out += (&name == &scalar.names.front() ? "\n\n- " : "\n- ") + name.name + ": " + name.help;
    }
    return out;
  }

  // `held` holds the default; `trial` is for trying which values the member accepts.
  Json::Object value(const ValueSchema& value, const std::string& path, void* held, void* trial) {
    Json::Object out;
    if (value.optional) {
      held = held == nullptr ? nullptr : value.peek(held);
      trial = value.emplace(trial);
    }
    switch (value.shape) {
      case Shape::kStruct: out = members(*value.members, path + '.', held); break;
      case Shape::kList: out = list(value, path, trial); break;
      case Shape::kEnum: out = enumeration(value); break;
      case Shape::kInteger: out = integer(value, trial); break;
      case Shape::kNumber: out = number(value); break;
      case Shape::kBool: out = {{"type", "boolean"}}; break;
      case Shape::kTree: out = {{"type", Json::Array{"object", "null"}}}; break;
      // `name: 12` is the text 12.
      case Shape::kText: out = {{"type", Json::Array{"string", "number", "boolean"}}}; break;
    }
    if (value.optional) {
      allow_null(out);
    }
    return out;
  }

  Json::Object members(const StructSchema& members, const std::string& prefix, void* held) {
    const std::shared_ptr<void> fresh = held == nullptr ? members.make() : nullptr;
    Json::Object object = structure(members, prefix, fresh ? fresh.get() : held);
    if (members.short_for.empty()) {
      return object;
    }
    const FieldSchema& key = *members.find(members.short_for);
    const std::shared_ptr<void> trial = members.make();
    return {
        {"anyOf", Json::Array{value(key.value, prefix + key.name, nullptr, key.member(trial.get())),
                              std::move(object)}}};
  }

  Json::Object list(const ValueSchema& value, const std::string& path, void* trial) {
    // A single element may be written without brackets.
    const bool brackets = value.item->shape == Shape::kStruct && !value.one_or_many;
    const std::string inside = brackets ? path + "[]" : path;
    const Json::Object item = this->value(*value.item, inside, nullptr, value.append(trial));
    Json::Object many{{"type", "array"}, {"items", item}};
    if (!value.one_or_many) {
      return many;
    }
    return {{"anyOf", Json::Array{item, std::move(many)}}};
  }

  static Json::Object enumeration(const ValueSchema& value) {
    Json::Array names;
    for (const schema::EnumName& name : value.names) {
      names.push_back(name.name);
    }
    return {{"enum", std::move(names)}};
  }

  static Json::Object integer(const ValueSchema& value, void* trial) {
    const auto takes = [&](std::int64_t number) { return value.set(trial, Scalar(number)); };
    schema::Limits limits = value.limits;
    if (!limits.low && !takes(-1)) {
      limits.low = 0.0;
    }
    // The largest values of integer types, the narrowest type first.
    constexpr std::array kLargest{127.0, 255.0, 32767.0, 65535.0, 2147483647.0, 4294967295.0};
    for (const double largest : kLargest) {
      if (!limits.high && !takes(static_cast<std::int64_t>(largest) + 1)) {
        limits.high = largest;
      }
    }
    Json::Object out{{"type", "integer"}};
    add_limits(limits, out);
    if (value.unit != "bytes") {
      return out;
    }
    const Json::Object suffixed{{"type", "string"},
                                {"pattern", "^(0|[1-9][0-9]*)(KiB|MiB|GiB|TiB)$"}};
    return {{"anyOf", Json::Array{std::move(out), suffixed}}};
  }

  static Json::Object number(const ValueSchema& value) {
    Json::Object out{{"type", "number"}};
    add_limits(value.limits, out);
    if (!value.limits.or_zero) {
      return out;
    }
    return {{"anyOf", Json::Array{Json::Object{{"const", 0}}, std::move(out)}}};
  }

  static void add_limits(const schema::Limits& limits, Json::Object& out) {
    if (limits.low) {
      out.push_back(
          {limits.low_excluded ? "exclusiveMinimum" : "minimum", number_json(*limits.low)});
    }
    if (limits.high) {
      out.push_back({"maximum", number_json(*limits.high)});
    }
  }

  static void allow_null(Json::Object& out) {
    const auto find = [&out](std::string_view name) {
      return std::find_if(out.begin(), out.end(),
                          [name](const Json::Member& member) { return member.name == name; });
    };
    if (const auto type = find("type"); type != out.end()) {
      Json::Array types =
          type->value.if_array() != nullptr ? *type->value.if_array() : Json::Array{type->value};
      types.push_back("null");
      type->value = Json(std::move(types));
    } else if (const auto names = find("enum"); names != out.end()) {
      Json::Array all = *names->value.if_array();
      all.push_back({});
      names->value = Json(std::move(all));
    } else if (const auto any = find("anyOf"); any != out.end()) {
      Json::Array all = *any->value.if_array();
      all.push_back(Json::Object{{"type", "null"}});
      any->value = Json(std::move(all));
    }
  }

  std::set<std::string> known_;  // all keys, with the choices they depend on
  std::vector<std::string> when_;
};

}  // namespace

Json json_schema(const StructSchema& root, std::string_view title) {
  const std::shared_ptr<void> initial = root.make();
  Json::Object out{{"$schema", "http://json-schema.org/draft-07/schema#"},
                   {"title", std::string(title)}};
  for (Json::Member& part : Writer(root).structure(root, "", initial.get())) {
    out.push_back(std::move(part));
  }
  return out;
}

}  // namespace tidemill
