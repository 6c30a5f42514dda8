// SPDX-License-Identifier: Apache-2.0
// The values a chat template computes with: those of JSON, and the few more that Jinja has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines::chat {

class Dict;
class Value;
struct Callable;
struct Loop;
struct Namespace;
struct Sequence;

using List = std::vector<Value>;

/// What a name or attribute that does not exist evaluates to.
struct Undefined {
  std::shared_ptr<const std::string> why;  // e.g. "'x' is undefined"
};

/// How a sequence behaves apart from its items.
enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kView,       // of a dict: can be iterated and counted, not indexed
  kGenerator,  // what lazy filters return: can be iterated once, is always true
};

/// A value: cheap to copy, and unchangeable but for namespaces.
class Value {
public:
  enum class Kind : std::uint8_t {
    kNone,
    kUndefined,
    kBool,
    kInt,
    kFloat,
    kString,
    kSequence,
    kDict,
    kNamespace,
    kCallable,
    kLoop,
  };

  /// Makes none.
  Value() = default;
  // Implicit, so that literals and results read naturally.
  Value(bool value) : data_(value) {}               // NOLINT(google-explicit-constructor)
  Value(int value) : data_(std::int64_t{value}) {}  // NOLINT(google-explicit-constructor)
  Value(std::int64_t value) : data_(value) {}       // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}             // NOLINT(google-explicit-constructor)
  Value(std::string text);                          // NOLINT(google-explicit-constructor)
  Value(std::string_view text);                     // NOLINT(google-explicit-constructor)
  Value(const char* text);                          // NOLINT(google-explicit-constructor)
  Value(Dict dict);                                 // NOLINT(google-explicit-constructor)
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}       // NOLINT
  Value(std::shared_ptr<const Callable> value) : data_(std::move(value)) {}  // NOLINT
  Value(std::shared_ptr<const Loop> value) : data_(std::move(value)) {}      // NOLINT

  /// Makes a sequence.
  [[nodiscard]] static Value sequence(List items, SequenceKind kind = SequenceKind::kList);
  /// Makes an undefined value.
  [[nodiscard]] static Value undefined(std::string why);
  /// Reads JSON text; objects keep their order.
  /// Errors: `kCorruptData` (not JSON, a key twice, nested deeper than 64, an integer that does not
  /// fit 64 bits); the message names the byte offset or the key.
  [[nodiscard]] static Result<Value> parse_json(std::string_view text);

  [[nodiscard]] Kind kind() const noexcept { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind kind) const noexcept { return this->kind() == kind; }
  [[nodiscard]] bool is_none() const noexcept { return is(Kind::kNone); }
  [[nodiscard]] bool is_undefined() const noexcept { return is(Kind::kUndefined); }
  [[nodiscard]] bool is_string() const noexcept { return is(Kind::kString); }
  [[nodiscard]] bool is_dict() const noexcept { return is(Kind::kDict); }
  [[nodiscard]] bool is_sequence() const noexcept { return is(Kind::kSequence); }
  /// Returns whether this is a sequence of the given kind.
  [[nodiscard]] bool is_sequence(SequenceKind kind) const noexcept;
  /// Returns whether this is a bool, an integer or a float.
  [[nodiscard]] bool is_number() const noexcept;

  // Each requires the kind that it names.
  [[nodiscard]] bool as_bool() const { return std::get<bool>(data_); }
  [[nodiscard]] std::int64_t as_int() const { return std::get<std::int64_t>(data_); }
  [[nodiscard]] double as_float() const { return std::get<double>(data_); }
  [[nodiscard]] const std::string& as_string() const { return *std::get<StringPtr>(data_); }
  [[nodiscard]] Sequence& as_sequence() const { return *std::get<SequencePtr>(data_); }
  [[nodiscard]] const Dict& as_dict() const { return *std::get<DictPtr>(data_); }
  [[nodiscard]] Namespace& as_namespace() const {
    return *std::get<std::shared_ptr<Namespace>>(data_);
  }
  [[nodiscard]] const Callable& as_callable() const {
    return *std::get<std::shared_ptr<const Callable>>(data_);
  }
  [[nodiscard]] const Loop& as_loop() const {
    return *std::get<std::shared_ptr<const Loop>>(data_);
  }
  [[nodiscard]] const std::string& undefined_why() const { return *std::get<Undefined>(data_).why; }

  /// Returns the integer behind a bool or an integer.
  [[nodiscard]] std::optional<std::int64_t> integer() const noexcept;
  /// Returns a bool, integer or float as a float.
  [[nodiscard]] std::optional<double> number() const noexcept;
  /// Returns what `if` makes of the value.
  [[nodiscard]] bool truthy() const;
  /// Returns the name of the type as Python has it, e.g. "str".
  [[nodiscard]] std::string_view type_name() const;

  /// Returns how many containers are nested, 0 for anything else.
  [[nodiscard]] std::size_t depth() const noexcept;
  /// Returns whether a namespace, a callable or a loop is this or inside: what a namespace may not
  /// hold, lest chains of them grow without bound.
  [[nodiscard]] bool holds_reference() const noexcept;

private:
  using StringPtr = std::shared_ptr<const std::string>;
  using SequencePtr = std::shared_ptr<Sequence>;
  using DictPtr = std::shared_ptr<const Dict>;

  // In the order of Kind.
  std::variant<std::monostate, Undefined, bool, std::int64_t, double, StringPtr, SequencePtr,
               DictPtr, std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
               std::shared_ptr<const Loop>>
      data_;
};

/// A list, a tuple, a view or a generator.
struct Sequence {
  List items;
  SequenceKind kind = SequenceKind::kList;
  std::size_t depth = 1;
  bool holds_reference = false;
};

/// A mapping that keeps the order in which keys first came.
class Dict {
public:
  struct Entry {
    Value key;
    Value value;
  };

  /// Puts `value` under `key`, at the place of an equal key if there is one. Returns false if the
  /// key is of a kind that cannot be one, such as a list.
  bool insert(Value key, Value value);
  /// Returns the value of `key`, or nullptr.
  [[nodiscard]] const Value* find(const Value& key) const;
  /// Returns the value of the key that is this text, or nullptr.
  [[nodiscard]] const Value* member(std::string_view name) const;

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  [[nodiscard]] bool holds_reference() const noexcept { return holds_reference_; }

private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;  // by `key_identity`
  std::size_t depth_ = 1;
  bool holds_reference_ = false;
};

/// The one kind of value whose attributes a template can set.
struct Namespace {
  std::unordered_map<std::string, Value> attributes;
};

/// The arguments of a call.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A macro, a method bound to its object, or a function.
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  std::size_t depth = 1;
};

/// What `loop` is inside a `for`.
struct Loop {
  List items;
  std::size_t index = 0;                              // from 0
  std::size_t depth = 0;                              // of recursion, from 0
  std::function<Value(const Arguments&)> recurse;     // empty unless the loop is recursive
  std::shared_ptr<std::optional<List>> last_changed;  // what loop.changed saw before
};

/// Returns text equal for equal keys and different for different ones: 1, 1.0 and true are one key.
/// Nothing for what cannot be a key.
[[nodiscard]] std::optional<std::string> key_identity(const Value& key);

/// Returns `a == b` as Python has it. Recursion is bounded by the depth of the values.
[[nodiscard]] bool equal(const Value& a, const Value& b);

}  // namespace tidemill::engines::chat
