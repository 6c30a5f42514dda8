// SPDX-License-Identifier: Apache-2.0
// Describes option structs, once for each, for reading, printing, help and reference pages.
//
// A struct of options has members, whose initial values are the defaults, and one function that
// describes them:
//
//   struct RolloutOptions {
//     std::int32_t group_size = 8;
//     double temperature = 1.0;
//   };
//   void describe(Schema<RolloutOptions>& s) {
//     s.field("group_size", &RolloutOptions::group_size, "Responses generated for each prompt.")
//         .range(1, 1024);
//     s.field("temperature", &RolloutOptions::temperature, "Divides the logits.").at_least(0);
//     s.check("temperature", [](const RolloutOptions& o) {
//       return o.group_size > 1 && o.temperature == 0 ? "0 makes all samples equal" : "";
//     });
//   }
//
// `Schema<T>::described()` builds a schema from that function. A schema reads a `ConfigNode` into a
// checked T, prints a T, explains keys, and writes reference pages (reference.hpp). Members
// may be bool, integers, double, std::string, enumerations with a `describe(EnumSchema<E>&)`,
// described structs, and std::optional and std::vector of these. A ConfigNode that is a map takes
// any keys and values.
//
// At most one key of a struct may be a selector. A `one_of` selects which further keys exist
// (`reward.kind`). A `presets` selects the defaults of the other keys (`algorithm.name`). More
// kinds and presets can be added later.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/schema/node.hpp"
#include "base/schema/types.hpp"

namespace tidemill {

/// Collects the names of an enumeration. Fill it in `describe(EnumSchema<E>&)` next to the type.
template <class E>
class EnumSchema {
public:
  EnumSchema& name(std::string name, E value, std::string help) {
    names_.push_back({std::move(name), static_cast<std::int64_t>(value), std::move(help)});
    return *this;
  }
  [[nodiscard]] const std::vector<schema::EnumName>& names() const { return names_; }

private:
  std::vector<schema::EnumName> names_;
};

/// Returns the name of an enumerator as files spell it.
template <class E>
[[nodiscard]] std::string enum_name(E value) {
  EnumSchema<E> names;
  describe(names);
  for (const schema::EnumName& entry : names.names()) {
    if (entry.value == static_cast<std::int64_t>(value)) {
      return entry.name;
    }
  }
  return {};
}

/// Refines the field that was just added. Valid until the next field is added.
class Field {
public:
  explicit Field(schema::FieldSchema& field) : field_(field) {}
  /// Accepts numbers from `low` to `high`.
  Field& range(double low, double high);
  Field& at_least(double low);
  Field& at_most(double high);
  /// Accepts numbers greater than `low`.
  Field& above(double low);
  /// Accepts 0 in addition to the range of a number that is not an integer.
  Field& or_zero();
  /// Names the unit: "bytes" (which also accepts suffixes such as 64MiB), "ms", "tokens".
  Field& unit(std::string unit);
  /// Refuses a file without this key.
  Field& required();
  /// Lets a list be written as a single element.
  Field& one_or_many();
  /// Gives names that other programs use for this setting. A file that has one of them is refused
  /// with this key as the suggestion.
  Field& also_called(std::vector<std::string> names);

private:
  schema::ValueSchema& scalar();
  schema::FieldSchema& field_;
};

/// The result of reading a configuration.
template <class T>
struct Resolved {
  T value;
  std::vector<std::string> warnings;  // one line each, naming location and key
};

namespace schema {

/// Fills `object` from `root` and appends to `warnings`. Errors: those of `Schema::read`.
[[nodiscard]] Status read_struct(const StructSchema& schema, const ConfigNode& root, void* object,
                                 std::vector<std::string>& warnings);

/// Returns the tree that reads back as `object`. It has every key, with the selector first.
[[nodiscard]] ConfigNode print_struct(const StructSchema& schema, void* object);

}  // namespace schema

/// The description of an option struct.
///
/// Threads: a schema that no longer changes is safe to use concurrently.
template <class T>
class Schema {
public:
  using Rule = std::function<std::string(const T&)>;

  Schema();
  Schema(Schema&&) noexcept = default;
  Schema& operator=(Schema&&) noexcept = default;

  /// Returns the schema that `describe(Schema<T>&)` builds.
  [[nodiscard]] static Schema described() {
    Schema result;
    describe(result);
    return result;
  }

  /// Reads `root` into a T, then applies the rules. Keys that `root` lacks keep their defaults.
  ///
  /// Errors: `kInvalidArgument` with one line "location: key: problem" for the first problem. Keys
  /// and values are checked first, in the order of the file, then missing keys and rules.
  [[nodiscard]] Result<Resolved<T>> read(const ConfigNode& root) const {
    Resolved<T> resolved;
    TIDEMILL_RETURN_IF_ERROR(
        schema::read_struct(*structure_, root, &resolved.value, resolved.warnings));
    return resolved;
  }

  /// Returns the tree that reads back as `value`.
  [[nodiscard]] ConfigNode print(T value) const {
    return schema::print_struct(*structure_, &value);
  }

  [[nodiscard]] const schema::StructSchema& structure() const { return *structure_; }

  /// Adds a key for `member`.
  template <class Value>
  Field field(std::string name, Value T::*member, std::string help);

  /// Adds the keys and rules of `member`, a described struct, at this level.
  template <class Inner>
  Schema& include(Inner T::*member);

  /// Adds the selector of the kind of value that `member` holds. Add its kinds with `kind`.
  Schema& one_of(std::string name, OneOf T::*member, std::string help);
  /// Adds a kind with K's keys to this struct's `one_of`. `implied_by` may name a key of K: a file
  /// that has this key, but not the selector, selects this kind.
  template <class K>
  Schema& kind(std::string name, std::string help, std::string implied_by = {});

  /// Adds the selector of the other keys' defaults. Add its rows with `preset`.
  Schema& presets(std::string name, std::string T::*member, std::string help);
  /// Adds a row to this struct's `presets`. It sets the defaults of all keys to `values`.
  Schema& preset(std::string name, std::string help, T values);

  /// Lets a file give just the value of the key `name` instead of the whole struct.
  Schema& short_for(std::string name);

  /// Refuses a file without the selector.
  Schema& choice_required();

  /// Gives names of settings of other programs that have no counterpart here. `why` completes
  /// "unknown key; ...".
  Schema& absent(std::vector<std::string> names, std::string why);

  /// Adds a rule. It returns "" if the options are valid, else the error about `key` ("a.b" names a
  /// key of a nested struct).
  Schema& check(std::string key, Rule rule);
  /// Adds a rule whose message is a warning instead of an error.
  Schema& warn(std::string key, Rule rule);

  /// Adds kind K to the `one_of` of every struct at `path`, such as "reward".
  /// Errors: `kNotFound` if there is none, `kInvalidArgument` if the name is taken.
  template <class K>
  [[nodiscard]] Status add_kind(std::string_view path, std::string name, std::string help);
  /// Adds a row to the `presets` of every struct at `path`, such as "algorithm". The struct there
  /// must be an S. Errors: as `add_kind`.
  template <class S>
  [[nodiscard]] Status add_preset(std::string_view path, std::string name, std::string help,
                                  S values);

private:
  void add_rule(std::string key, schema::Severity severity, Rule rule);

  std::shared_ptr<schema::StructSchema> structure_;
};

}  // namespace tidemill

#include "base/schema/builder.hpp"
