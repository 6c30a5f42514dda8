// SPDX-License-Identifier: Apache-2.0
// Python's semantics of operators, checked for overflow and charged to the budget.
#include "engines/chat/operators.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string.h>  // memmem: unlike std::string::find it is linear in the worst case

#include "base/text/utf8.hpp"
#include "engines/chat/format.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

using Kind = Value::Kind;

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

[[noreturn]] void overflow() {
  fail("an integer result does not fit in 64 bits");
}

std::string_view symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return "+";
    case BinaryOp::kSubtract: return "-";
    case BinaryOp::kMultiply: return "*";
    case BinaryOp::kDivide: return "/";
    case BinaryOp::kFloorDivide: return "//";
    case BinaryOp::kModulo: return "%";
    case BinaryOp::kPower: return "** or pow()";
  }
  return "";
}

[[noreturn]] void unsupported(BinaryOp op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for " + std::string(symbol(op)) + ": " +
       quoted(left.type_name()) + " and " + quoted(right.type_name()));
}

// ---- Numbers ------------------------------------------------------------------------------------

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    std::int64_t negated = 0;
    if (__builtin_sub_overflow(std::int64_t{0}, a, &negated)) {
      overflow();
    }
    return negated;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    return 0;
  }
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0.0) {
    return std::copysign(0.0, b);
  }
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) {
      fail("0.0 cannot be raised to a negative power");
    }
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  std::int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      overflow();
    }
    exponent >>= 1;
    if (exponent == 0) {
      return result;
    }
    if (__builtin_mul_overflow(base, base, &base)) {
      overflow();
    }
  }
}

Value of_integers(BinaryOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool too_large = false;
  switch (op) {
    case BinaryOp::kAdd: too_large = __builtin_add_overflow(a, b, &result); break;
    case BinaryOp::kSubtract: too_large = __builtin_sub_overflow(a, b, &result); break;
    case BinaryOp::kMultiply: too_large = __builtin_mul_overflow(a, b, &result); break;
    case BinaryOp::kDivide:
      if (b == 0) {
        fail("division by zero");
      }
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOp::kFloorDivide:
      if (b == 0) {
        fail("integer division or modulo by zero");
      }
      return floor_divide(a, b);
    case BinaryOp::kModulo:
      if (b == 0) {
        fail("integer modulo by zero");
      }
      return modulo(a, b);
    case BinaryOp::kPower: return power(a, b);
  }
  if (too_large) {
    overflow();
  }
  return result;
}

Value of_floats(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd: return a + b;
    case BinaryOp::kSubtract: return a - b;
    case BinaryOp::kMultiply: return a * b;
    case BinaryOp::kDivide:
      if (b == 0) {
        fail("float division by zero");
      }
      return a / b;
    case BinaryOp::kFloorDivide: {
      if (b == 0) {
        fail("float floor division by zero");
      }
      const double quotient = std::floor((a - modulo(a, b)) / b + 0.5);
      return quotient == 0 ? std::copysign(0.0, a / b) : quotient;
    }
    case BinaryOp::kModulo:
      if (b == 0) {
        fail("float modulo");
      }
      return modulo(a, b);
    case BinaryOp::kPower: {
      if (a == 0 && b < 0) {
        fail("0.0 cannot be raised to a negative power");
      }
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
        fail("a power has a complex result");
      }
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) {
        fail("a power is out of range");
      }
      return result;
    }
  }
  return {};
}

// ---- Sequences ----------------------------------------------------------------------------------

Value repeat(Runtime& runtime, const Value& value, std::int64_t times) {
  const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
  const auto charge = [&](std::uint64_t size) {
    if (size != 0 && count > Budget::kMaxAllocated / size) {
      Budget::exceeded("repeating a value " + std::to_string(count) + " times");
    }
    runtime.budget.allocate(size * count);
  };
  if (value.is_string()) {
    charge(value.as_string().size());
    std::string text;
    for (std::uint64_t i = 0; i < count && !value.as_string().empty(); ++i) {
      text += value.as_string();
    }
    return string_like(value, std::move(text));
  }
  const Sequence& sequence = value.as_sequence();
  charge(sequence.items.size() * sizeof(Value));
  List items;
  for (std::uint64_t i = 0; i < count && !sequence.items.empty(); ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return make_sequence(runtime, std::move(items), sequence.kind);
}

bool is_indexable(const Value& value) {
  return value.is_sequence(SequenceKind::kList) || value.is_sequence(SequenceKind::kTuple);
}

Value add(Runtime& runtime, const Value& left, const Value& right) {
  if (left.is_string() && right.is_string() && (left.is_markup() || right.is_markup())) {
    const Value first = escaped(runtime, left);
    const Value second = escaped(runtime, right);
    runtime.budget.allocate(first.as_string().size() + second.as_string().size());
    return Value::markup(first.as_string() + second.as_string());
  }
  if (left.is_string()) {
    if (!right.is_string()) {
      fail("can only concatenate str (not \"" + std::string(right.type_name()) + "\") to str");
    }
    runtime.budget.allocate(left.as_string().size() + right.as_string().size());
    return Value(left.as_string() + right.as_string());
  }
  if (is_indexable(left)) {
    const Sequence& first = left.as_sequence();
    if (!right.is_sequence(first.kind)) {
      const std::string name(left.type_name());
      fail("can only concatenate " + name + " (not \"" + std::string(right.type_name()) +
           "\") to " + name);
    }
    List items = first.items;
    const List& more = right.as_sequence().items;
    items.insert(items.end(), more.begin(), more.end());
    return make_sequence(runtime, std::move(items), first.kind);
  }
  unsupported(BinaryOp::kAdd, left, right);
}

// Returns `format % operand`.
Value format_with(Runtime& runtime, const Value& format, const Value& operand) {
  Arguments arguments;
  if (operand.is_sequence(SequenceKind::kTuple)) {
    arguments.positional = operand.as_sequence().items;
  } else {
    arguments.positional.push_back(operand);
  }
  if (operand.is_dict()) {
    for (const Dict::Entry& entry : operand.as_dict().entries()) {
      if (entry.key.is_string()) {
        arguments.named.emplace_back(entry.key.as_string(), entry.value);
      }
    }
  }
  // A value that has items may remain unused, because Python takes it as the mapping for named
  // conversions.
  const bool may_remain =
      operand.is_dict() || operand.is_undefined() || operand.is_sequence(SequenceKind::kList);
  return format_percent(runtime, format, arguments,
                        may_remain ? UnusedArguments::kAllowed : UnusedArguments::kRefused);
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      fail("'in <string>' requires string as left operand, not " + std::string(item.type_name()));
    }
    const std::string& text = container.as_string();
    const std::string& part = item.as_string();
    runtime.budget.scan(text.size() + part.size());
    return memmem(text.data(), text.size(), part.data(), part.size()) != nullptr;
  }
  if (container.is_dict()) {
    if (item.is_undefined()) {
      return false;
    }
    if (!key_identity(item)) {
      fail("unhashable type: " + quoted(item.type_name()));
    }
    runtime.budget.scan(item.is_string() ? item.as_string().size() : 1);
    return container.as_dict().find(item) != nullptr;
  }
  if (!container.is_sequence() && !container.is_undefined()) {
    fail("argument of type " + quoted(container.type_name()) + " is not iterable");
  }
  const List items = iterate(runtime, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& other) {
    return apply(runtime, CompareOp::kEqual, other, item);
  });
}

// Returns the number of bytes that a comparison may read.
std::uint64_t comparison_cost(const Value& value) {
  if (value.is_string()) {
    return value.as_string().size();
  }
  if (value.is_sequence()) {
    return value.as_sequence().items.size() * sizeof(Value);
  }
  if (value.is_dict()) {
    return value.as_dict().size() * sizeof(Value);
  }
  return 1;
}

bool equal_charged(Runtime& runtime, const Value& a, const Value& b) {
  runtime.budget.scan(std::min(comparison_cost(a), comparison_cost(b)));
  if (a.is_sequence() && b.is_sequence() && a.as_sequence().kind == b.as_sequence().kind) {
    const List& left = a.as_sequence().items;
    const List& right = b.as_sequence().items;
    if (!is_indexable(a)) {
      return equal(a, b);
    }
    return left.size() == right.size() &&
           std::equal(left.begin(), left.end(), right.begin(),
                      [&](const Value& x, const Value& y) { return equal_charged(runtime, x, y); });
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.as_dict().size() != b.as_dict().size()) {
      return false;
    }
    for (const Dict::Entry& entry : a.as_dict().entries()) {
      const Value* other = b.as_dict().find(entry.key);
      if (other == nullptr || !equal_charged(runtime, entry.value, *other)) {
        return false;
      }
    }
    return true;
  }
  return equal(a, b);
}

// ---- Items --------------------------------------------------------------------------------------

Value no_item(const Value& object, std::string_view what) {
  const std::string owner =
      object.is_none() ? "None" : quoted(std::string(object.type_name()) + " object");
  return Value::undefined(owner + " has no " + std::string(what));
}

// Returns an attribute of a value as in Python, or an undefined value.
Value python_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is(Kind::kNamespace)) {
    const auto& attributes = object.as_namespace().attributes;
    const auto found = attributes.find(std::string(name));
    if (found != attributes.end()) {
      return found->second;
    }
  }
  return find_method(runtime, object, name);
}

// Returns an item by key or index, or nullopt if there is none.
std::optional<Value> find_item(const Value& object, const Value& key) {
  if (object.is_dict()) {
    const Value* found = object.as_dict().find(key);
    if (found == nullptr) {
      return std::nullopt;
    }
    return *found;
  }
  const auto index = key.integer();
  if (!index) {
    return std::nullopt;
  }
  if (object.is_string()) {
    const std::string& text = object.as_string();
    const auto count = static_cast<std::int64_t>(count_code_points(text));
    const std::int64_t at = *index < 0 ? *index + count : *index;
    if (at < 0 || at >= count) {
      return std::nullopt;
    }
    const std::size_t begin = byte_offset(text, static_cast<std::size_t>(at));
    return string_like(object, text.substr(begin, read_utf8(text, begin).length));
  }
  if (!is_indexable(object)) {
    return std::nullopt;
  }
  const List& items = object.as_sequence().items;
  const auto count = static_cast<std::int64_t>(items.size());
  const std::int64_t at = *index < 0 ? *index + count : *index;
  if (at < 0 || at >= count) {
    return std::nullopt;
  }
  return items[static_cast<std::size_t>(at)];
}

// Calls `take` with the indices of a slice of `count` items, in order.
template <class Take>
void slice_indices(const SliceBounds& bounds, std::int64_t count, const Take& take) {
  const std::int64_t step = bounds.step;
  if (step == 0) {
    fail("slice step cannot be zero");
  }
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? count : count - 1;
  const auto clamp = [&](const std::optional<std::int64_t>& bound, std::int64_t when_absent) {
    if (!bound) {
      return when_absent;
    }
    const std::int64_t at = *bound < 0 ? *bound + count : *bound;
    return std::clamp(at, low, high);
  };
  std::int64_t i = clamp(bounds.begin, step > 0 ? low : high);
  const std::int64_t end = clamp(bounds.end, step > 0 ? high : low);
  while (step > 0 ? i < end : i > end) {
    take(static_cast<std::size_t>(i));
    if (__builtin_add_overflow(i, step, &i)) {
      return;
    }
  }
}

}  // namespace

// ---- Making values ------------------------------------------------------------------------------

Value make_sequence(Runtime& runtime, List items, SequenceKind kind) {
  runtime.budget.allocate(sizeof(Sequence) + items.size() * sizeof(Value));
  Value value = Value::sequence(std::move(items), kind);
  Budget::check_depth(value.depth());
  return value;
}

Value make_dict(Runtime& /*runtime*/, Dict dict) {
  Value value(std::move(dict));
  Budget::check_depth(value.depth());
  return value;
}

void insert(Runtime& runtime, Dict& dict, Value key, Value value) {
  runtime.budget.allocate(4 * sizeof(Value) + comparison_cost(key));
  const std::string type(key.type_name());
  if (!dict.insert(std::move(key), std::move(value))) {
    fail("unhashable type: " + quoted(type));
  }
}

Value make_string(Runtime& runtime, std::string text) {
  runtime.budget.allocate(text.size());
  return Value(std::move(text));
}

std::string text_of(Runtime& runtime, const Value& value) {
  return to_text(value, runtime.budget);
}

void require_defined(const Value& value) {
  if (value.is_undefined()) {
    fail(value.undefined_reason());
  }
}

// ---- Operators ----------------------------------------------------------------------------------

Value apply(Runtime& /*runtime*/, UnaryOp op, const Value& operand) {
  if (op == UnaryOp::kNot) {
    return !operand.truthy();
  }
  require_defined(operand);
  if (operand.is(Kind::kFloat)) {
    return op == UnaryOp::kNegate ? -operand.as_float() : operand;
  }
  const auto integer = operand.integer();
  if (!integer) {
    fail("bad operand type for unary " + std::string(op == UnaryOp::kNegate ? "-" : "+") + ": " +
         quoted(operand.type_name()));
  }
  if (op == UnaryOp::kPlus) {
    return *integer;
  }
  std::int64_t negated = 0;
  if (__builtin_sub_overflow(std::int64_t{0}, *integer, &negated)) {
    overflow();
  }
  return negated;
}

Value apply(Runtime& runtime, BinaryOp op, const Value& left, const Value& right) {
  require_defined(left);
  if (op == BinaryOp::kModulo && left.is_string()) {
    return format_with(runtime, left, right);
  }
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    const auto a = left.integer();
    const auto b = right.integer();
    return a && b ? of_integers(op, *a, *b) : of_floats(op, *left.number(), *right.number());
  }
  if (op == BinaryOp::kAdd) {
    return add(runtime, left, right);
  }
  if (op == BinaryOp::kMultiply) {
    const auto is_repeatable = [](const Value& v) { return v.is_string() || is_indexable(v); };
    if (is_repeatable(left) && right.integer()) {
      return repeat(runtime, left, *right.integer());
    }
    if (is_repeatable(right) && left.integer()) {
      return repeat(runtime, right, *left.integer());
    }
  }
  unsupported(op, left, right);
}

bool apply(Runtime& runtime, CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::kEqual: return equal_charged(runtime, left, right);
    case CompareOp::kNotEqual: return !equal_charged(runtime, left, right);
    case CompareOp::kIn: return contains(runtime, right, left);
    case CompareOp::kNotIn: return !contains(runtime, right, left);
    default: break;
  }
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number() && !(left.integer() && right.integer())) {
    const double a = *left.number();  // not with `order`, because NaN is neither less nor greater
    const double b = *right.number();
    switch (op) {
      case CompareOp::kLess: return a < b;
      case CompareOp::kLessEqual: return a <= b;
      case CompareOp::kGreater: return a > b;
      default: return a >= b;
    }
  }
  const int sign = order(runtime, left, right);
  switch (op) {
    case CompareOp::kLess: return sign < 0;
    case CompareOp::kLessEqual: return sign <= 0;
    case CompareOp::kGreater: return sign > 0;
    default: return sign >= 0;
  }
}

int order(Runtime& runtime, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  runtime.budget.scan(std::min(comparison_cost(left), comparison_cost(right)));
  const auto sign = [](const auto& a, const auto& b) { return a < b ? -1 : b < a ? 1 : 0; };
  if (left.is_number() && right.is_number()) {
    if (left.integer() && right.integer()) {
      return sign(*left.integer(), *right.integer());
    }
    return sign(*left.number(), *right.number());
  }
  // The byte order of UTF-8 is the order of code points.
  if (left.is_string() && right.is_string()) {
    return sign(left.as_string(), right.as_string());
  }
  if (is_indexable(left) && right.is_sequence(left.as_sequence().kind)) {
    const List& a = left.as_sequence().items;
    const List& b = right.as_sequence().items;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!equal_charged(runtime, a[i], b[i])) {
        return order(runtime, a[i], b[i]);
      }
    }
    return sign(a.size(), b.size());
  }
  fail("'<' not supported between instances of " + quoted(left.type_name()) + " and " +
       quoted(right.type_name()));
}

// ---- Attributes and items -----------------------------------------------------------------------

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  require_defined(object);
  Value attribute = python_attribute(runtime, object, name);
  if (!attribute.is_undefined()) {
    return attribute;
  }
  if (object.is_dict()) {
    if (const Value* item = object.as_dict().member(name)) {
      return *item;
    }
  }
  return no_item(object, "attribute " + quoted(name));
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  require_defined(object);
  if (object.is_string()) {
    runtime.budget.scan(object.as_string().size());
  }
  if (auto item = find_item(object, key)) {
    return *std::move(item);
  }
  if (!key.is_string()) {
    return no_item(object, "element " + (key.is_undefined() ? std::string("Undefined")
                                                            : to_repr(key, runtime.budget)));
  }
  Value attribute = python_attribute(runtime, object, key.as_string());
  return attribute.is_undefined() ? no_item(object, "attribute " + quoted(key.as_string()))
                                  : attribute;
}

Value get_slice(Runtime& runtime, const Value& object, const SliceBounds& bounds) {
  require_defined(object);
  if (object.is_string()) {
    const std::string& text = object.as_string();
    runtime.budget.allocate(text.size());
    const auto characters = characters_of(text);
    runtime.budget.allocate(characters.size() * sizeof(std::string_view));
    std::string out;
    slice_indices(bounds, static_cast<std::int64_t>(characters.size()),
                  [&](std::size_t i) { out.append(characters[i]); });
    return string_like(object, std::move(out));
  }
  if (!is_indexable(object)) {
    fail(quoted(object.type_name()) + " object is not subscriptable by a slice");
  }
  const Sequence& sequence = object.as_sequence();
  List items;
  slice_indices(bounds, static_cast<std::int64_t>(sequence.items.size()),
                [&](std::size_t i) { items.push_back(sequence.items[i]); });
  return make_sequence(runtime, std::move(items), sequence.kind);
}

Value get_path(Runtime& runtime, const Value& object, const Value& path,
               const Value* when_undefined) {
  const auto item_of = [&](const Value& owner, const Value& key) {
    Value item = get_item(runtime, owner, key);
    return item.is_undefined() && when_undefined != nullptr ? *when_undefined : item;
  };
  if (path.integer()) {
    return item_of(object, path);
  }
  if (!path.is_string()) {
    fail("an attribute must be a name or an index");
  }
  Value value = object;
  std::string_view rest = path.as_string();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool is_index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = item_of(value, is_index ? Value(std::stoi(std::string(part))) : Value(part));
    if (dot == rest.size()) {
      return value;
    }
    rest.remove_prefix(dot + 1);
  }
}

// ---- Iteration ----------------------------------------------------------------------------------

List iterate(Runtime& runtime, const Value& value) {
  List items;
  if (value.is_undefined()) {
    return items;
  }
  if (value.is_string()) {
    const auto characters = characters_of(value.as_string());
    runtime.budget.allocate(characters.size() * 4 * sizeof(Value));
    items.assign(characters.begin(), characters.end());
    return items;
  }
  if (value.is_dict()) {
    runtime.budget.allocate(value.as_dict().size() * sizeof(Value));
    for (const Dict::Entry& entry : value.as_dict().entries()) {
      items.push_back(entry.key);
    }
    return items;
  }
  if (!value.is_sequence()) {
    fail(quoted(value.type_name()) + " object is not iterable");
  }
  Sequence& sequence = value.as_sequence();
  if (sequence.kind == SequenceKind::kGenerator) {
    return std::exchange(sequence.items, {});
  }
  runtime.budget.allocate(sequence.items.size() * sizeof(Value));
  return sequence.items;
}

std::int64_t length(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) {
    return 0;
  }
  if (value.is_string()) {
    runtime.budget.scan(value.as_string().size());
    return static_cast<std::int64_t>(count_code_points(value.as_string()));
  }
  if (value.is_dict()) {
    return static_cast<std::int64_t>(value.as_dict().size());
  }
  if (!value.is_sequence() || value.is_sequence(SequenceKind::kGenerator)) {
    fail("object of type " + quoted(value.type_name()) + " has no len()");
  }
  return static_cast<std::int64_t>(value.as_sequence().items.size());
}

}  // namespace tidemill::engines::chat
