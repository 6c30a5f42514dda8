// SPDX-License-Identifier: Apache-2.0
// The values of chat templates: those of JSON, and a few more that Jinja has.
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

/// The value of a name or attribute that does not exist.
struct Undefined {
  std::shared_ptr<const std::string> reason;  // e.g. "'x' is undefined"
};

/// The kind of a sequence, which determines its behavior.
enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kView,       // of a dict: can be iterated and counted, but not indexed
  kGenerator,  // the result of a lazy filter: can be iterated once, and is always true
};

/// A value. Values are cheap to copy. Templates can modify only namespaces, and iterating over a
/// generator empties it.
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

  /// Creates the value none.
  Value() = default;
  // Implicit, so that literals and results can be used as values.
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

  /// Creates a string that is marked as escaped, like Python's `markupsafe.Markup`.
  [[nodiscard]] static Value markup(std::string text);
  /// Creates a sequence.
  [[nodiscard]] static Value sequence(List items, SequenceKind kind = SequenceKind::kList);
  /// Creates an undefined value.
  [[nodiscard]] static Value undefined(std::string reason);
  /// Parses JSON. Objects keep the order of their keys.
  /// Errors: those of `tidemill::parse_json`; `kCorruptData` naming an integer that does not fit in
  /// 64 bits.
  [[nodiscard]] static Result<Value> parse_json(std::string_view text);

  [[nodiscard]] Kind kind() const noexcept { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind kind) const noexcept { return this->kind() == kind; }
  [[nodiscard]] bool is_none() const noexcept { return is(Kind::kNone); }
  [[nodiscard]] bool is_undefined() const noexcept { return is(Kind::kUndefined); }
  [[nodiscard]] bool is_string() const noexcept { return is(Kind::kString); }
  [[nodiscard]] bool is_dict() const noexcept { return is(Kind::kDict); }
  [[nodiscard]] bool is_sequence() const noexcept { return is(Kind::kSequence); }
  /// Returns whether this is a string that is marked as escaped.
  [[nodiscard]] bool is_markup() const noexcept;
  /// Returns whether this is a sequence of the given kind.
  [[nodiscard]] bool is_sequence(SequenceKind kind) const noexcept;
  /// Returns whether this is a bool, an integer or a float.
  [[nodiscard]] bool is_number() const noexcept;

  // Each requires a value of the kind that it names.
  [[nodiscard]] bool as_bool() const { return std::get<bool>(data_); }
  [[nodiscard]] std::int64_t as_int() const { return std::get<std::int64_t>(data_); }
  [[nodiscard]] double as_float() const { return std::get<double>(data_); }
  [[nodiscard]] const std::string& as_string() const { return std::get<StringPtr>(data_)->text; }
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
  [[nodiscard]] const std::string& undefined_reason() const {
    return *std::get<Undefined>(data_).reason;
  }

  /// Returns a bool or an integer as an integer, nullopt for other kinds.
  [[nodiscard]] std::optional<std::int64_t> integer() const noexcept;
  /// Returns a bool, integer or float as a float, nullopt for other kinds.
  [[nodiscard]] std::optional<double> number() const noexcept;
  /// Returns whether `if` treats the value as true.
  [[nodiscard]] bool truthy() const;
  /// Returns Python's name of the type, e.g. "str".
  [[nodiscard]] std::string_view type_name() const;

  /// Returns the nesting depth of containers, 0 if the value is not a container.
  [[nodiscard]] std::size_t depth() const noexcept;
  /// Returns whether the value is or contains a namespace, a callable or a loop. A namespace may
  /// not hold such a value, because chains of them could grow without limit.
  [[nodiscard]] bool holds_reference() const noexcept;

private:
  struct String {
    std::string text;
    bool is_markup = false;
  };
  using StringPtr = std::shared_ptr<const String>;
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
  bool is_group = false;  // a pair of `groupby`, with the attributes grouper and list
};

/// A mapping that keeps the order in which keys were first inserted.
class Dict {
public:
  struct Entry {
    Value key;
    Value value;
  };

  /// Stores `value` under `key`. If an equal key exists, its value is replaced and its position
  /// kept. Returns false if `key` is of a kind that cannot be a key, such as a list.
  bool insert(Value key, Value value);
  /// Returns the value of `key`, or nullptr.
  [[nodiscard]] const Value* find(const Value& key) const;
  /// Returns the value of the string key `name`, or nullptr.
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

/// The variable `loop` inside a `for`.
struct Loop {
  List items;
  std::size_t index = 0;                              // from 0
  std::size_t depth = 0;                              // of recursion, from 0
  std::function<Value(const Arguments&)> recurse;     // empty unless the loop is recursive
  std::shared_ptr<std::optional<List>> last_changed;  // the previous arguments of loop.changed
};

/// Returns a text that is equal for equal keys and different for different keys. 1, 1.0 and true
/// are equal keys. Returns nullopt for a value that cannot be a key.
[[nodiscard]] std::optional<std::string> key_identity(const Value& key);

/// Returns `a == b` as in Python. The depth of the values limits the recursion.
[[nodiscard]] bool equal(const Value& a, const Value& b);

}  // namespace tidemill::engines::chat
