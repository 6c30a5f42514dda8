// SPDX-License-Identifier: Apache-2.0
// The template bodies of `Schema`: how C++ members become schema data. Included by schema.hpp.
#pragma once

#include <concepts>

#include "base/check.hpp"
#include "base/schema/schema.hpp"

namespace tidemill {
namespace schema {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

// Checked before any lookup of `describe`, which would instantiate Schema<int>.
template <class T>
struct IsDescribed : std::false_type {};
template <class T>
requires(std::is_class_v<T> && !std::is_same_v<T, std::string> &&
         requires(Schema<T> & s) { describe(s); }) struct IsDescribed<T> : std::true_type {
};

/// Adds a kind or preset to the tag of `structure`.
/// Errors: `kInvalidArgument` if the name is taken, or if a key of the kind exists in `structure`.
[[nodiscard]] Status add_to_tag(StructSchema& structure, KindSchema kind);

template <class T>
void describe_scalar(ValueSchema& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value.shape = Shape::kBool;
  } else if constexpr (std::is_integral_v<T>) {
    value.shape = Shape::kInteger;
  } else if constexpr (std::is_same_v<T, double>) {
    value.shape = Shape::kNumber;
  } else if constexpr (std::is_enum_v<T>) {
    EnumSchema<T> names;
    describe(names);
    value.shape = Shape::kEnum;
    value.names = names.names();
  } else {
    static_assert(std::is_same_v<T, std::string>, "a schema cannot hold members of this type");
    value.shape = Shape::kText;
  }
  // Integers and enumerators are carried as 64-bit numbers.
  using Carrier =
      std::conditional_t<(std::is_integral_v<T> && !std::is_same_v<T, bool>) || std::is_enum_v<T>,
                         std::int64_t, T>;
  value.set = [](void* target, const Scalar& scalar) {
    const auto& carried = std::get<Carrier>(scalar);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (!std::in_range<T>(carried)) {
        return false;
      }
    }
    *static_cast<T*>(target) = static_cast<T>(carried);
    return true;
  };
  value.get = [](const void* source) {
    return Scalar(static_cast<Carrier>(*static_cast<const T*>(source)));
  };
}

template <class T>
[[nodiscard]] ValueSchema describe_value() {
  ValueSchema value;
  if constexpr (IsOptional<T>::value) {
    value = describe_value<typename T::value_type>();
    value.optional = true;
    value.emplace = [](void* target) -> void* { return &static_cast<T*>(target)->emplace(); };
    value.reset = [](void* target) { static_cast<T*>(target)->reset(); };
    value.peek = [](void* source) -> void* {
      T& held = *static_cast<T*>(source);
      return held ? &*held : nullptr;
    };
  } else if constexpr (IsVector<T>::value) {
    value.shape = Shape::kList;
    value.item = std::make_shared<ValueSchema>(describe_value<typename T::value_type>());
    value.clear = [](void* target) { static_cast<T*>(target)->clear(); };
    value.append = [](void* target) -> void* { return &static_cast<T*>(target)->emplace_back(); };
    value.size = [](const void* source) { return static_cast<const T*>(source)->size(); };
    value.at = [](void* source, std::size_t i) -> void* { return &static_cast<T*>(source)->at(i); };
  } else if constexpr (std::is_same_v<T, ConfigNode>) {
    value.shape = Shape::kTree;
  } else if constexpr (IsDescribed<T>::value) {
    value.shape = Shape::kStruct;
    value.members = std::make_shared<StructSchema>(Schema<T>::described().structure());
  } else {
    describe_scalar<T>(value);
  }
  return value;
}

}  // namespace schema

template <class T>
Schema<T>::Schema() : structure_(std::make_shared<schema::StructSchema>()) {
  structure_->make = [] { return std::static_pointer_cast<void>(std::make_shared<T>()); };
  structure_->type = &typeid(T);
}

template <class T>
template <class Value>
Field Schema<T>::field(std::string name, Value T::*member, std::string help) {
  TIDEMILL_CHECK(structure_->find(name) == nullptr) << "described twice: " << name;
  schema::FieldSchema field;
  field.name = std::move(name);
  field.help = std::move(help);
  field.value = schema::describe_value<Value>();
  field.member = [member](void* object) -> void* { return &(static_cast<T*>(object)->*member); };
  structure_->fields.push_back(std::move(field));
  return Field{structure_->fields.back()};
}

template <class T>
template <class Inner>
Schema<T>& Schema<T>::include(Inner T::*member) {
  const Schema<Inner> inner = Schema<Inner>::described();
  TIDEMILL_CHECK(!inner.structure().tag) << "a struct with a tag cannot be included";
  for (schema::FieldSchema field : inner.structure().fields) {
    TIDEMILL_CHECK(structure_->find(field.name) == nullptr) << "described twice: " << field.name;
    field.member = [member, inside = field.member](void* object) {
      return inside(&(static_cast<T*>(object)->*member));
    };
    structure_->fields.push_back(std::move(field));
  }
  structure_->absent.insert(structure_->absent.end(), inner.structure().absent.begin(),
                            inner.structure().absent.end());
  for (schema::RuleSchema rule : inner.structure().rules) {
    rule.test = [member, inside = rule.test](const void* object) {
      return inside(&(static_cast<const T*>(object)->*member));
    };
    structure_->rules.push_back(std::move(rule));
  }
  return *this;
}

template <class T>
Schema<T>& Schema<T>::one_of(std::string name, OneOf T::*member, std::string help) {
  TIDEMILL_CHECK(!structure_->tag) << "a struct has at most one tag";
  schema::TagSchema& tag = structure_->tag.emplace();
  tag.name = std::move(name);
  tag.help = std::move(help);
  tag.one_of = [member](void* object) { return &(static_cast<T*>(object)->*member); };
  tag.chosen = [member](const void* object) {
    return (static_cast<const T*>(object)->*member).name();
  };
  return *this;
}

template <class K>
[[nodiscard]] schema::KindSchema make_kind(const schema::TagSchema& tag, std::string name,
                                           std::string help, std::string implied_by) {
  schema::KindSchema kind;
  const auto one_of = tag.one_of;
  kind.choose = [one_of, name](void* object) { *one_of(object) = OneOf(name, K{}); };
  kind.value = [one_of](void* object) -> void* { return one_of(object)->template get<K>(); };
  kind.members = std::make_shared<schema::StructSchema>(Schema<K>::described().structure());
  kind.name = std::move(name);
  kind.help = std::move(help);
  kind.implied_by = std::move(implied_by);
  return kind;
}

template <class T>
template <class K>
Schema<T>& Schema<T>::kind(std::string name, std::string help, std::string implied_by) {
  TIDEMILL_CHECK(structure_->tag && structure_->tag->one_of) << "kind() comes after one_of()";
  const Status added = schema::add_to_tag(
      *structure_,
      make_kind<K>(*structure_->tag, std::move(name), std::move(help), std::move(implied_by)));
  TIDEMILL_CHECK(added.ok()) << added.message();
  return *this;
}

template <class T>
Schema<T>& Schema<T>::presets(std::string name, std::string T::*member, std::string help) {
  TIDEMILL_CHECK(!structure_->tag) << "a struct has at most one tag";
  schema::TagSchema& tag = structure_->tag.emplace();
  tag.name = std::move(name);
  tag.help = std::move(help);
  tag.chosen = [member](const void* object) { return static_cast<const T*>(object)->*member; };
  tag.set_chosen = [member](void* object, const std::string& kind) {
    static_cast<T*>(object)->*member = kind;
  };
  return *this;
}

template <class S>
[[nodiscard]] schema::KindSchema make_preset(std::string name, std::string help, S values) {
  schema::KindSchema kind;
  kind.name = std::move(name);
  kind.help = std::move(help);
  kind.choose = [values = std::move(values)](void* object) { *static_cast<S*>(object) = values; };
  return kind;
}

template <class T>
Schema<T>& Schema<T>::preset(std::string name, std::string help, T values) {
  TIDEMILL_CHECK(structure_->tag && !structure_->tag->one_of) << "preset() comes after presets()";
  const Status added =
      schema::add_to_tag(*structure_, make_preset(std::move(name), std::move(help), values));
  TIDEMILL_CHECK(added.ok()) << added.message();
  return *this;
}

template <class T>
Schema<T>& Schema<T>::short_for(std::string name) {
  TIDEMILL_CHECK(structure_->find(name) != nullptr) << "short_for() comes after its field";
  structure_->short_for = std::move(name);
  return *this;
}

template <class T>
Schema<T>& Schema<T>::absent(std::vector<std::string> names, std::string why) {
  structure_->absent.push_back({std::move(names), std::move(why)});
  return *this;
}

template <class T>
Schema<T>& Schema<T>::choice_required() {
  TIDEMILL_CHECK(structure_->tag.has_value());
  structure_->tag->required = true;
  return *this;
}

template <class T>
void Schema<T>::add_rule(std::string key, schema::Severity severity, Rule rule) {
  const auto test = [rule = std::move(rule)](const void* o) {
    return rule(*static_cast<const T*>(o));
  };
  structure_->rules.push_back({std::move(key), severity, test});
}

template <class T>
Schema<T>& Schema<T>::check(std::string key, Rule rule) {
  add_rule(std::move(key), schema::Severity::kError, std::move(rule));
  return *this;
}

template <class T>
Schema<T>& Schema<T>::warn(std::string key, Rule rule) {
  add_rule(std::move(key), schema::Severity::kWarning, std::move(rule));
  return *this;
}

template <class T>
template <class K>
Status Schema<T>::add_kind(std::string_view path, std::string name, std::string help) {
  bool added = false;
  for (schema::StructSchema* structure : schema::find_structs(*structure_, path)) {
    if (structure->tag && structure->tag->one_of) {
      TIDEMILL_RETURN_IF_ERROR(
          schema::add_to_tag(*structure, make_kind<K>(*structure->tag, name, help, {})));
      added = true;
    }
  }
  return added ? Status{} : Status(Errc::kNotFound, std::string(path) + ": has no kinds");
}

template <class T>
template <class S>
Status Schema<T>::add_preset(std::string_view path, std::string name, std::string help, S values) {
  bool added = false;
  for (schema::StructSchema* structure : schema::find_structs(*structure_, path)) {
    if (structure->tag && !structure->tag->one_of && *structure->type == typeid(S)) {
      TIDEMILL_RETURN_IF_ERROR(schema::add_to_tag(*structure, make_preset(name, help, values)));
      added = true;
    }
  }
  return added ? Status{} : Status(Errc::kNotFound, std::string(path) + ": has no presets");
}

}  // namespace tidemill
