// SPDX-License-Identifier: Apache-2.0
// What a schema knows about option structs, as plain data with the types erased.
//
// `Schema<T>` (schema.hpp) fills these from C++ members; reading, printing, explaining and the
// reference pages are ordinary functions that walk them. Function pointers and functions here only
// reach into objects; all rules about values stand in the data.
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

/// A value of one of several kinds, chosen in a file by name. Kinds are open: a program may add
/// its own to a schema (`Schema::add_kind`).
class OneOf {
public:
  /// Holds nothing.
  OneOf() = default;
  /// Holds `value` under the kind's name.
  template <class T>
  OneOf(std::string name, T value) : name_(std::move(name)), value_(std::move(value)) {}

  /// Returns the name of the kind; empty when nothing is held.
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

/// What a value looks like in a file.
enum class Shape : std::uint8_t { kBool, kInteger, kNumber, kText, kEnum, kList, kStruct };

/// A scalar on its way into or out of a member; an enumerator travels as its number.
using Scalar = std::variant<bool, std::int64_t, double, std::string>;

/// The numbers a field takes.
struct Limits {
  std::optional<double> low;
  std::optional<double> high;
  bool low_excluded = false;
};

/// One name of an enumeration.
struct EnumName {
  std::string name;
  std::int64_t value = 0;
  std::string help;
};

/// How one C++ type is written in a file. For a list, `item` says what its elements are.
struct ValueSchema {
  Shape shape = Shape::kText;
  bool optional = false;     // the member is a std::optional; `null` empties it
  bool one_or_many = false;  // a list that takes a single element without brackets
  Limits limits;
  std::string unit;  // "bytes" also takes suffixes: 64MiB
  std::vector<EnumName> names;
  std::shared_ptr<ValueSchema> item;
  std::shared_ptr<StructSchema> members;

  /// Stores a scalar; false if the member's type cannot hold it.
  bool (*set)(void* value, const Scalar& scalar) = nullptr;
  Scalar (*get)(const void* value) = nullptr;
  /// Optional members: make a fresh value, empty it, look inside (null when empty).
  void* (*emplace)(void* value) = nullptr;
  void (*reset)(void* value) = nullptr;
  void* (*peek)(void* value) = nullptr;
  /// Lists: remove all, add one and return it, count, look at one.
  void (*clear)(void* value) = nullptr;
  void* (*append)(void* value) = nullptr;
  std::size_t (*size)(const void* value) = nullptr;
  void* (*at)(void* value, std::size_t index) = nullptr;
};

/// One key of a struct.
struct FieldSchema {
  std::string name;
  std::string help;
  bool required = false;
  ValueSchema value;
  std::function<void*(void* object)> member;
};

/// One name the key that chooses a kind may have.
struct KindSchema {
  std::string name;
  std::string help;
  std::string implied_by;                 // a key of this kind that makes its name dispensable
  std::function<void(void*)> choose;      // gives the object this kind's initial values
  std::shared_ptr<StructSchema> members;  // further keys; null for a row of presets
  std::function<void*(void*)> value;      // where those keys are stored
};

/// A key that chooses what the struct's other keys are, or what they start from.
struct TagSchema {
  std::string name;
  std::string help;
  bool required = false;
  std::vector<KindSchema> kinds;
  std::function<std::string(const void*)> chosen;
  std::function<OneOf*(void*)> one_of;                        // empty: rows of presets
  std::function<void(void*, const std::string&)> set_chosen;  // of presets

  [[nodiscard]] const KindSchema* find(std::string_view kind) const;
};

enum class Severity : std::uint8_t { kError, kWarning };

/// A rule over several keys; `test` returns what is wrong, or nothing. The complaint names `key`.
struct RuleSchema {
  std::string key;
  Severity severity = Severity::kError;
  std::function<std::string(const void*)> test;
  bool excludes = false;  // refuses `key` whenever a file has it: it is none of this struct's
};

/// One option struct.
struct StructSchema {
  std::optional<TagSchema> tag;
  std::string short_for;  // a key whose value may stand for the struct; empty: none
  std::vector<FieldSchema> fields;
  std::vector<RuleSchema> rules;
  std::function<std::shared_ptr<void>()> make;  // a new object with the initial values
  const std::type_info* type = nullptr;

  [[nodiscard]] const FieldSchema* find(std::string_view field) const;
  /// Returns the kind that `object` has, or null.
  [[nodiscard]] const KindSchema* kind_of(const void* object) const;
};

/// Returns the shortest text that reads back as `value`: "0.5", "1e-4".
[[nodiscard]] std::string number_text(double value);

/// Returns what a value may be, for people: "an integer from 1 to 1024", "one of: error, skip".
[[nodiscard]] std::string type_phrase(const ValueSchema& value);

/// Returns "one of: a, b" for the names a tag may have.
[[nodiscard]] std::string kinds_phrase(const TagSchema& tag);

/// Returns the members at `path` ("train.adapter"; "" is `root`), one for each kind that has it.
[[nodiscard]] std::vector<StructSchema*> find_structs(StructSchema& root, std::string_view path);

}  // namespace schema
}  // namespace tidemill
