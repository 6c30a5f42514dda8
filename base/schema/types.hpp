// SPDX-License-Identifier: Apache-2.0
// Descriptions of option structs as plain data, with the C++ types erased.
//
// `Schema<T>` (schema.hpp) fills them from C++ members. Reading, printing, explaining and the
// reference pages are ordinary functions that walk them. The functions stored here only access
// objects; all rules about values are data.
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

namespace tidemill {

/// A value of one of several kinds, which a file chooses by name. The set of kinds is open: a
/// program may add its own to a schema (`Schema::add_kind`).
class OneOf {
public:
  /// Holds nothing.
  OneOf() = default;
  /// Holds `value`, whose kind is called `name`.
  template <class T>
  OneOf(std::string name, T value) : name_(std::move(name)), value_(std::move(value)) {}

  /// Returns the name of the kind, or "" if nothing is held.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Returns the value if it is a `T`, else null.
  template <class T>
  [[nodiscard]] const T* get() const noexcept {
    return std::any_cast<T>(&value_);
  }
  template <class T>
  [[nodiscard]] T* get() noexcept {
    return std::any_cast<T>(&value_);
  }

private:
  std::string name_;
  std::any value_;
};

namespace schema {

struct StructSchema;

/// The form of a value in a file.
enum class Shape : std::uint8_t {
  kBool,
  kInteger,
  kNumber,
  kText,
  kEnum,
  kList,
  kStruct,
  kTree,  // any keys and values; the member is a ConfigNode that is a map
};

/// A scalar on its way into or out of a member. An enumerator is represented by its number.
using Scalar = std::variant<bool, std::int64_t, double, std::string>;

/// The range of numbers that a field accepts.
struct Limits {
  std::optional<double> low;
  std::optional<double> high;
  bool low_excluded = false;
  bool or_zero = false;  // 0 is accepted, too
};

/// One name of an enumeration.
struct EnumName {
  std::string name;
  std::int64_t value = 0;
  std::string help;
};

/// How a C++ type is written in a file. For a list, `item` describes its elements.
struct ValueSchema {
  Shape shape = Shape::kText;
  bool optional = false;     // the member is a std::optional; `null` empties it
  bool one_or_many = false;  // a list that takes a single element without brackets
  Limits limits;
  std::string unit;  // "bytes" also takes suffixes: 64MiB
  std::vector<EnumName> names;
  std::shared_ptr<ValueSchema> item;
  std::shared_ptr<StructSchema> members;

  /// Stores a scalar. Returns false if the member's type cannot hold it.
  bool (*set)(void* value, const Scalar& scalar) = nullptr;
  Scalar (*get)(const void* value) = nullptr;
  /// For optional members: create a value, empty it, access it (null when empty).
  void* (*emplace)(void* value) = nullptr;
  void (*reset)(void* value) = nullptr;
  void* (*peek)(void* value) = nullptr;
  /// For lists: remove all elements, append one and return it, count them, access one.
  void (*clear)(void* value) = nullptr;
  void* (*append)(void* value) = nullptr;
  std::size_t (*size)(const void* value) = nullptr;
  void* (*at)(void* value, std::size_t index) = nullptr;
};

/// One key of a struct.
struct FieldSchema {
  std::string name;
  std::vector<std::string> also_called;  // names of the same setting in other programs
  std::string help;
  bool required = false;
  ValueSchema value;
  std::function<void*(void* object)> member;
};

/// One of the names that a tag can have.
struct KindSchema {
  std::string name;
  std::string help;
  std::string implied_by;                 // a key that chooses this kind if its name is left out
  std::function<void(void*)> choose;      // gives the object this kind's initial values
  std::shared_ptr<StructSchema> members;  // the kind's own keys; null for a preset
  std::function<void*(void*)> value;      // where those keys are stored
};

/// A key that chooses which other keys the struct has, or their initial values.
struct TagSchema {
  std::string name;
  std::string help;
  bool required = false;
  std::vector<KindSchema> kinds;
  std::function<std::string(const void*)> chosen;
  std::function<OneOf*(void*)> one_of;                        // empty for presets
  std::function<void(void*, const std::string&)> set_chosen;  // for presets only

  [[nodiscard]] const KindSchema* find(std::string_view kind) const;
};

/// Names of settings of other programs that have no counterpart here.
struct AbsentKeys {
  std::vector<std::string> names;
  std::string why;  // completes "unknown key; ..."
};

enum class Severity : std::uint8_t { kError, kWarning };

/// A rule over several keys. `test` returns what is wrong, or "". The message names `key`.
struct RuleSchema {
  std::string key;
  Severity severity = Severity::kError;
  std::function<std::string(const void*)> test;
};

/// One option struct.
struct StructSchema {
  std::optional<TagSchema> tag;
  std::string short_for;  // a key whose value may be written for the whole struct; empty: none
  std::vector<FieldSchema> fields;
  std::vector<RuleSchema> rules;
  std::vector<AbsentKeys> absent;
  std::function<std::shared_ptr<void>()> make;  // a new object with the initial values
  const std::type_info* type = nullptr;

  [[nodiscard]] const FieldSchema* find(std::string_view field) const;
  /// Returns the kind that `object` has, or null.
  [[nodiscard]] const KindSchema* kind_of(const void* object) const;
};

/// Returns the shortest text that reads back as `value`: "0.5", "1e-4".
[[nodiscard]] std::string number_text(double value);

/// Returns the valid values in words: "an integer from 1 to 1024", "one of: error, skip".
[[nodiscard]] std::string type_phrase(const ValueSchema& value);

/// Returns "one of: a, b" for the names a tag may have.
[[nodiscard]] std::string kinds_phrase(const TagSchema& tag);

/// Returns the structs at `path` ("train.adapter"; "" is `root`), one for each kind that has it.
[[nodiscard]] std::vector<StructSchema*> find_structs(StructSchema& root, std::string_view path);

}  // namespace schema
}  // namespace tidemill
