// SPDX-License-Identifier: Apache-2.0
// Implements kinds, truth, keys and equality of values.
#include "engines/chat/value.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engines/chat/text.hpp"

namespace tidemill::engines::chat {
namespace {

// Returns a float as an integer if it is a whole number that fits in 64 bits.
std::optional<std::int64_t> whole(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value >= -kLimit && value < kLimit) || value != std::trunc(value)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(value);
}

bool equal_numbers(const Value& a, const Value& b) {
  const auto left = a.integer();
  const auto right = b.integer();
  if (left && right) {
    return *left == *right;
  }
  // An integer beyond 2^53 must not equal its rounding.
  if (left) {
    return whole(b.as_float()) == left;
  }
  if (right) {
    return whole(a.as_float()) == right;
  }
  return a.as_float() == b.as_float();
}

bool equal_sequences(const Sequence& a, const Sequence& b) {
  const auto comparable = [](SequenceKind kind) {
    return kind == SequenceKind::kList || kind == SequenceKind::kTuple;
  };
  if (a.kind != b.kind || !comparable(a.kind)) {
    return &a == &b;
  }
  return a.items.size() == b.items.size() &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) {
    return false;
  }
  return std::all_of(a.entries().begin(), a.entries().end(), [&b](const Dict::Entry& entry) {
    const Value* other = b.find(entry.key);
    return other != nullptr && equal(entry.value, *other);
  });
}

}  // namespace

Value::Value(std::string text)
    : data_(std::make_shared<const String>(String{std::move(text), false})) {}
Value::Value(std::string_view text) : Value(std::string(text)) {}
Value::Value(const char* text) : Value(std::string(text)) {}
Value::Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}

Value Value::markup(std::string text) {
  Value value;
  value.data_ = std::make_shared<const String>(String{std::move(text), true});
  return value;
}

Value Value::sequence(List items, SequenceKind kind) {
  auto sequence = std::make_shared<Sequence>();
  for (const Value& item : items) {
    sequence->depth = std::max(sequence->depth, item.depth() + 1);
    sequence->holds_reference = sequence->holds_reference || item.holds_reference();
  }
  sequence->items = std::move(items);
  sequence->kind = kind;
  Value value;
  value.data_ = std::move(sequence);
  return value;
}

Value Value::undefined(std::string reason) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(reason))};
  return value;
}

bool Value::is_markup() const noexcept {
  return is_string() && std::get<StringPtr>(data_)->is_markup;
}

bool Value::is_sequence(SequenceKind kind) const noexcept {
  return is_sequence() && as_sequence().kind == kind;
}

bool Value::is_number() const noexcept {
  return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat);
}

std::optional<std::int64_t> Value::integer() const noexcept {
  if (is(Kind::kBool)) {
    return as_bool() ? 1 : 0;
  }
  if (is(Kind::kInt)) {
    return as_int();
  }
  return std::nullopt;
}

std::optional<double> Value::number() const noexcept {
  if (is(Kind::kFloat)) {
    return as_float();
  }
  const auto value = integer();
  if (!value) {
    return std::nullopt;
  }
  return static_cast<double>(*value);
}

bool Value::truthy() const {
  switch (kind()) {
    case Kind::kNone:
    case Kind::kUndefined: return false;
    case Kind::kBool: return as_bool();
    case Kind::kInt: return as_int() != 0;
    case Kind::kFloat: return as_float() != 0.0;
    case Kind::kString: return !as_string().empty();
    case Kind::kSequence:
      return as_sequence().kind == SequenceKind::kGenerator || !as_sequence().items.empty();
    case Kind::kDict: return as_dict().size() > 0;
    case Kind::kNamespace:
    case Kind::kCallable:
    case Kind::kLoop: return true;
  }
  return false;
}

std::string_view Value::type_name() const {
  switch (kind()) {
    case Kind::kNone: return "NoneType";
    case Kind::kUndefined: return "Undefined";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return is_markup() ? "Markup" : "str";
    case Kind::kSequence: break;
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kCallable: return "function";
    case Kind::kLoop: return "LoopContext";
  }
  switch (as_sequence().kind) {
    case SequenceKind::kList: return "list";
    case SequenceKind::kTuple: return "tuple";
    case SequenceKind::kView: return "dict view";
    case SequenceKind::kGenerator: return "generator";
  }
  return "";
}

std::size_t Value::depth() const noexcept {
  if (is_sequence()) {
    return as_sequence().depth;
  }
  if (is_dict()) {
    return as_dict().depth();
  }
  if (is(Kind::kCallable)) {
    return as_callable().depth;
  }
  return 0;
}

bool Value::holds_reference() const noexcept {
  if (is_sequence()) {
    return as_sequence().holds_reference;
  }
  if (is_dict()) {
    return as_dict().holds_reference();
  }
  return is(Kind::kNamespace) || is(Kind::kCallable) || is(Kind::kLoop);
}

bool Dict::insert(Value key, Value value) {
  auto identity = key_identity(key);
  if (!identity) {
    return false;
  }
  depth_ = std::max(depth_, value.depth() + 1);
  holds_reference_ = holds_reference_ || value.holds_reference();
  const auto [position, is_new] = index_.emplace(*std::move(identity), entries_.size());
  if (is_new) {
    entries_.push_back({std::move(key), std::move(value)});
  } else {
    entries_[position->second].value = std::move(value);
  }
  return true;
}

const Value* Dict::find(const Value& key) const {
  const auto identity = key_identity(key);
  if (!identity) {
    return nullptr;
  }
  const auto found = index_.find(*identity);
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

const Value* Dict::member(std::string_view name) const {
  const auto found = index_.find(std::string("s").append(name));
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

std::optional<std::string> key_identity(const Value& key) {
  if (key.is_string()) {
    return "s" + key.as_string();
  }
  if (key.is_none()) {
    return "n";
  }
  if (const auto integer = key.integer()) {
    return "i" + std::to_string(*integer);
  }
  if (key.is(Value::Kind::kFloat)) {
    if (const auto integer = whole(key.as_float())) {
      return "i" + std::to_string(*integer);
    }
    return "f" + float_repr(key.as_float());
  }
  if (!key.is_sequence(SequenceKind::kTuple)) {
    return std::nullopt;
  }
  std::string identity = "t";
  for (const Value& item : key.as_sequence().items) {
    const auto part = key_identity(item);
    if (!part) {
      return std::nullopt;
    }
    identity += std::to_string(part->size()) + ":" + *part;
  }
  return identity;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return equal_numbers(a, b);
  }
  if (a.kind() != b.kind()) {
    return false;
  }
  switch (a.kind()) {
    case Value::Kind::kNone:
    case Value::Kind::kUndefined: return true;
    case Value::Kind::kString: return a.as_string() == b.as_string();
    case Value::Kind::kSequence: return equal_sequences(a.as_sequence(), b.as_sequence());
    case Value::Kind::kDict: return equal_dicts(a.as_dict(), b.as_dict());
    case Value::Kind::kNamespace: return &a.as_namespace() == &b.as_namespace();
    case Value::Kind::kCallable: return &a.as_callable() == &b.as_callable();
    case Value::Kind::kLoop: return &a.as_loop() == &b.as_loop();
    case Value::Kind::kBool:
    case Value::Kind::kInt:
    case Value::Kind::kFloat: break;
  }
  return false;
}

}  // namespace tidemill::engines::chat
