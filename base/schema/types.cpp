// SPDX-License-Identifier: Apache-2.0
#include "base/schema/types.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace tidemill::schema {
namespace {

// Limits of integers are written out: 1000000, not 1e6.
std::string limit_text(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return whole ? std::to_string(static_cast<std::int64_t>(value)) : number_text(value);
}

std::string limits_phrase(const Limits& limits) {
  const std::string low = limits.low ? limit_text(*limits.low) : "";
  const std::string high = limits.high ? limit_text(*limits.high) : "";
  if (limits.low && limits.high) {
    return limits.low_excluded ? " above " + low + ", at most " + high
                               : " from " + low + " to " + high;
  }
  if (limits.low) {
    return (limits.low_excluded ? " above " : " of at least ") + low;
  }
  return limits.high ? " of at most " + high : "";
}

template <class Named>
std::string names_phrase(const std::vector<Named>& all) {
  std::string out = all.size() > 1 ? "one of: " : "";
  for (const Named& named : all) {
    out += (&named == &all.front() ? "" : ", ") + named.name;
  }
  return out;
}

}  // namespace

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end.ptr);
  // `to_chars` writes 1e-04 and 1e+09; people write 1e-4 and 1e9.
  if (const std::size_t e = text.find('e'); e != std::string::npos) {
    if (text.at(e + 2) == '0') {
      text.erase(e + 2, 1);
    }
    if (text.at(e + 1) == '+') {
      text.erase(e + 1, 1);
    }
  }
  return text;
}

const KindSchema* TagSchema::find(std::string_view kind) const {
  const auto hit =
      std::find_if(kinds.begin(), kinds.end(), [kind](const auto& k) { return k.name == kind; });
  return hit == kinds.end() ? nullptr : &*hit;
}

const FieldSchema* StructSchema::find(std::string_view field) const {
  const auto hit = std::find_if(fields.begin(), fields.end(),
                                [field](const auto& f) { return f.name == field; });
  return hit == fields.end() ? nullptr : &*hit;
}

const KindSchema* StructSchema::kind_of(const void* object) const {
  return tag ? tag->find(tag->chosen(object)) : nullptr;
}

std::string type_phrase(const ValueSchema& value) {
  switch (value.shape) {
    case Shape::kBool: return "true or false";
    case Shape::kInteger:
      return (value.unit == "bytes" ? "a number of bytes" : "an integer") +
             limits_phrase(value.limits);
    case Shape::kNumber:
      return (value.limits.or_zero ? "0 or a finite number" : "a finite number") +
             limits_phrase(value.limits);
    case Shape::kText: return "text";
    case Shape::kEnum: return names_phrase(value.names);
    case Shape::kList: {
      const std::string item = type_phrase(*value.item);
      return value.one_or_many ? item + ", or a list of these" : "a list, each " + item;
    }
    case Shape::kTree: return "keys and values";
    case Shape::kStruct: {
      const StructSchema& members = *value.members;
      return members.short_for.empty()
                 ? "keys and values"
                 : type_phrase(members.find(members.short_for)->value) + ", or keys and values";
    }
  }
  return {};
}

std::string kinds_phrase(const TagSchema& tag) {
  return names_phrase(tag.kinds);
}

std::vector<StructSchema*> find_structs(StructSchema& root, std::string_view path) {
  if (path.empty()) {
    return {&root};
  }
  const std::size_t dot = path.find('.');
  const std::string_view head = path.substr(0, dot);
  const std::string_view rest = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  std::vector<StructSchema*> found;
  if (const FieldSchema* field = root.find(head); field != nullptr) {
    const ValueSchema& value = field->value.item ? *field->value.item : field->value;
    if (value.members) {
      found = find_structs(*value.members, rest);
    }
  }
  if (root.tag) {
    for (const KindSchema& kind : root.tag->kinds) {
      if (kind.members) {
        const auto more = find_structs(*kind.members, path);
        found.insert(found.end(), more.begin(), more.end());
      }
    }
  }
  return found;
}

}  // namespace tidemill::schema
