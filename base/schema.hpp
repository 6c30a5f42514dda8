// SPDX-License-Identifier: Apache-2.0
// Option structs that describe themselves, once, for every use.
//
// A struct of options has members with initial values, which are the defaults, and one function
// that describes them:
//
//   struct RolloutOptions {
//     std::int32_t group_size = 8;
//     double temperature = 1.0;
//   };
//   void describe(Schema<RolloutOptions>& s) {
//     s.field("group_size", &RolloutOptions::group_size, "Samples drawn for each prompt.")
//         .range(1, 1024);
//     s.field("temperature", &RolloutOptions::temperature, "Divides the logits.").at_least(0);
//     s.check("temperature", [](const RolloutOptions& o) {
//       return o.group_size > 1 && o.temperature == 0 ? "0 makes equal samples" : "";
//     });
//   }
//
// `Schema<T>::described()` collects that (nested structs, optionals, lists and enumerations are
// found by their types), and reads a `ConfigNode` into a checked T, prints a T, explains keys, and
// writes reference pages (schema_reference.hpp). Members may be bool, integers, double,
// std::string, enumerations with a `describe(EnumSchema<E>&)`, described structs, and std::optional
// and std::vector of these.
//
// A struct may have one key that chooses: `one_of` (which further keys there are: `reward.kind`) or
// `presets` (what the other keys start from: `algorithm.name`). Both can be added to later.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/schema_node.hpp"
#include "base/schema_types.hpp"

namespace tidemill {

/// Collects the names of an enumeration; fill it in `describe(EnumSchema<E>&)` beside the type.
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

/// Returns the name of an enumerator, as files spell it.
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

/// Refines the field just added. Valid until the schema gets its next field.
class Field {
public:
  explicit Field(schema::FieldSchema& field) : field_(field) {}
  /// Takes numbers from `low` to `high`.
  Field& range(double low, double high);
  Field& at_least(double low);
  Field& at_most(double high);
  /// Takes numbers greater than `low`.
  Field& above(double low);
  /// Names the unit: "bytes" (which also takes suffixes such as 64MiB), "ms", "tokens".
  Field& unit(std::string unit);
  /// Refuses a file without this key.
  Field& required();
  /// Lets a list be written as a single element.
  Field& one_or_many();

private:
  schema::ValueSchema& scalar();
  schema::FieldSchema& field_;
};

/// What reading a configuration gives.
template <class T>
struct Resolved {
  T value;
  std::vector<std::string> warnings;  // one line each, naming place and key
};

namespace schema {

/// Fills `object` from `root`. Errors as `Schema::read`; warnings are appended.
[[nodiscard]] Status read_struct(const StructSchema& schema, const ConfigNode& root, void* object,
                                 std::vector<std::string>& warnings);

/// Returns the tree that reads back as `object`: every key, with the tag first.
[[nodiscard]] ConfigNode print_struct(const StructSchema& schema, void* object);

}  // namespace schema

/// The description of an option struct.
///
/// Threads: a schema that no longer changes may be used concurrently.
template <class T>
class Schema {
public:
  using Rule = std::function<std::string(const T&)>;

  Schema();
  Schema(Schema&&) noexcept = default;
  Schema& operator=(Schema&&) noexcept = default;

  /// Describes T by its `describe(Schema<T>&)`.
  [[nodiscard]] static Schema described() {
    Schema result;
    describe(result);
    return result;
  }

  /// Reads `root` over the initial values of T, then applies the rules.
  ///
  /// Errors: `kInvalidArgument` with one line "place: key: problem" for the first problem: keys and
  /// values in the order of the file; after them missing keys and broken rules.
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

  /// Adds the key that chooses which kind of value `member` holds; its kinds come by `kind`.
  Schema& one_of(std::string name, OneOf T::*member, std::string help);
  /// Adds a kind with K's keys to this struct's `one_of`. With `implied_by`, that key of K chooses
  /// the kind when the name is left out.
  template <class K>
  Schema& kind(std::string name, std::string help, std::string implied_by = {});

  /// Adds the key that chooses what the other keys start from; its rows come by `preset`.
  Schema& presets(std::string name, std::string T::*member, std::string help);
  /// Adds a row to this struct's `presets`: the values that `values` holds.
  Schema& preset(std::string name, std::string help, T values);

  /// Lets a value without braces stand for the struct whose key `name` has it.
  Schema& short_for(std::string name);

  /// Refuses a file that does not choose.
  Schema& choice_required();

  /// Adds a rule: a text other than "" says what is wrong with `key` ("a.b" reaches inside).
  Schema& check(std::string key, Rule rule);
  /// Adds a rule that refuses `key`, which a shared struct brings, whenever a file has it. Lists of
  /// keys leave it out.
  Schema& exclude(std::string key, Rule rule);
  /// Adds a rule whose text is a warning.
  Schema& warn(std::string key, Rule rule);

  /// Adds kind K to the `one_of` of every struct at `path`, such as "reward".
  /// Errors: `kNotFound` if there is none, `kInvalidArgument` if the name is taken.
  template <class K>
  [[nodiscard]] Status add_kind(std::string_view path, std::string name, std::string help);
  /// Adds a row to the `presets` of every struct at `path`, such as "algorithm"; the struct there
  /// must be an S. Errors as `add_kind`.
  template <class S>
  [[nodiscard]] Status add_preset(std::string_view path, std::string name, std::string help,
                                  S values);

private:
  void add_rule(std::string key, schema::Severity severity, Rule rule);

  std::shared_ptr<schema::StructSchema> structure_;
};

}  // namespace tidemill

#include "base/schema_builder.hpp"
