// SPDX-License-Identifier: Apache-2.0
// The tests that templates use with `is`.
#include <algorithm>
#include <array>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/builtins.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

using Kind = Value::Kind;

const Value& operand(const char* test, const char* parameter, const Arguments& arguments) {
  return BoundArguments(test, arguments, {parameter}).require(0);
}

void no_arguments(const Arguments& arguments) {
  const BoundArguments none("this test", arguments, {});
}

template <CompareOp op>
bool compare(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    fail("a comparison test takes no keyword arguments");
  }
  return apply(runtime, op, input, operand("a comparison test", "other", arguments));
}

bool in(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return apply(runtime, CompareOp::kIn, input, operand("in", "seq", arguments));
}

template <Kind kind>
bool of_kind(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is(kind);
}

bool is_iterable(const Value& value) {
  return value.is_sequence() || value.is_string() || value.is_dict() || value.is_undefined();
}

bool iterable(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return is_iterable(input);
}

// A sequence has a length and items. This includes strings, mappings and undefined values.
bool sequence(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is_string() || input.is_dict() || input.is_undefined() ||
         input.is_sequence(SequenceKind::kList) || input.is_sequence(SequenceKind::kTuple);
}

bool number(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is_number();
}

bool defined(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return !input.is_undefined();
}

bool is_true(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is(Kind::kBool) && input.as_bool();
}

bool is_false(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is(Kind::kBool) && !input.as_bool();
}

bool divisible(Runtime& runtime, const Value& input, const Value& by) {
  return equal(apply(runtime, BinaryOp::kModulo, input, by), Value(0));
}

bool divisibleby(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return divisible(runtime, input, operand("divisibleby", "num", arguments));
}

bool even(Runtime& runtime, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return divisible(runtime, input, Value(2));
}

bool odd(Runtime& runtime, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return equal(apply(runtime, BinaryOp::kModulo, input, Value(2)), Value(1));
}

// Undefined values are callable, because Jinja's Undefined defines __call__.
bool callable(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is(Kind::kCallable) || input.is(Kind::kLoop) || input.is_undefined();
}

bool escaped(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return input.is_markup();
}

// Returns whether the input is the name of a filter or test, which `find` finds.
template <auto find>
bool names(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  if (!input.is_undefined() && !key_identity(input)) {
    fail("unhashable type: '" + std::string(input.type_name()) + "'");
  }
  return input.is_string() && find(input.as_string()) != nullptr;
}

// Compares identity. Values that have no identity here are the same if they have the same kind and
// are equal.
bool sameas(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Value& other = operand("sameas", "other", arguments);
  if (input.kind() != other.kind() || input.is_markup() != other.is_markup()) {
    return false;
  }
  if (input.is_sequence()) {
    return &input.as_sequence() == &other.as_sequence();
  }
  if (input.is_dict()) {
    return &input.as_dict() == &other.as_dict();
  }
  return apply(runtime, CompareOp::kEqual, input, other);
}

// Like str.islower and str.isupper: the text has a cased character and none of the other case.
template <bool (*wanted)(char32_t) noexcept, bool (*other)(char32_t) noexcept>
bool all_cased(Runtime& runtime, const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  const std::string text = text_of(runtime, input);
  bool found = false;
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = read_utf8(character, 0).code_point;
    if (other(c)) {
      return false;
    }
    found = found || wanted(c);
  }
  return found;
}

constexpr std::array<std::pair<std::string_view, Test>, 39> kTests = {{
    {"!=", compare<CompareOp::kNotEqual>},
    {"<", compare<CompareOp::kLess>},
    {"<=", compare<CompareOp::kLessEqual>},
    {"==", compare<CompareOp::kEqual>},
    {">", compare<CompareOp::kGreater>},
    {">=", compare<CompareOp::kGreaterEqual>},
    {"boolean", of_kind<Kind::kBool>},
    {"callable", callable},
    {"defined", defined},
    {"divisibleby", divisibleby},
    {"eq", compare<CompareOp::kEqual>},
    {"equalto", compare<CompareOp::kEqual>},
    {"escaped", escaped},
    {"even", even},
    {"false", is_false},
    {"filter", names<find_filter>},
    {"float", of_kind<Kind::kFloat>},
    {"ge", compare<CompareOp::kGreaterEqual>},
    {"greaterthan", compare<CompareOp::kGreater>},
    {"gt", compare<CompareOp::kGreater>},
    {"in", in},
    {"integer", of_kind<Kind::kInt>},
    {"iterable", iterable},
    {"le", compare<CompareOp::kLessEqual>},
    {"lessthan", compare<CompareOp::kLess>},
    {"lower", all_cased<is_lower, is_upper>},
    {"lt", compare<CompareOp::kLess>},
    {"mapping", of_kind<Kind::kDict>},
    {"ne", compare<CompareOp::kNotEqual>},
    {"none", of_kind<Kind::kNone>},
    {"number", number},
    {"odd", odd},
    {"sameas", sameas},
    {"sequence", sequence},
    {"string", of_kind<Kind::kString>},
    {"test", names<find_test>},
    {"true", is_true},
    {"undefined", of_kind<Kind::kUndefined>},
    {"upper", all_cased<is_upper, is_lower>},
}};

}  // namespace

Test find_test(std::string_view name) {
  const auto* found = std::find_if(kTests.begin(), kTests.end(),
                                   [name](const auto& entry) { return entry.first == name; });
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace tidemill::engines::chat
