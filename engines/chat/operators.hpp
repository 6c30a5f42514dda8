// SPDX-License-Identifier: Apache-2.0
// What operators, subscripts and iteration do with values.
//
// All follow Python and throw `TemplateError` where Python raises.
#pragma once

#include <optional>
#include <string_view>

#include "engines/chat/ast.hpp"
#include "engines/chat/builtins.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Makes a sequence or dict and charges the budget for it.
[[nodiscard]] Value make_sequence(Runtime& runtime, List items,
                                  SequenceKind kind = SequenceKind::kList);
[[nodiscard]] Value make_dict(Runtime& runtime, Dict dict);
/// Inserts into a dict. Throws if the key cannot be one.
void insert(Runtime& runtime, Dict& dict, Value key, Value value);

/// Throws if `value` is undefined.
void require_defined(const Value& value);

[[nodiscard]] Value apply(Runtime& runtime, UnaryOp op, const Value& operand);
[[nodiscard]] Value apply(Runtime& runtime, BinaryOp op, const Value& left, const Value& right);
[[nodiscard]] bool apply(Runtime& runtime, CompareOp op, const Value& left, const Value& right);

/// Returns a negative, zero or positive number as `left` is less, equal or greater.
[[nodiscard]] int order(Runtime& runtime, const Value& left, const Value& right);

/// Returns `object.name` as Jinja finds it: an attribute, else an item.
[[nodiscard]] Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
/// Returns `object[key]` as Jinja finds it: an item, else an attribute.
[[nodiscard]] Value get_item(Runtime& runtime, const Value& object, const Value& key);

/// The bounds of a slice; absent ones are nothing.
struct SliceBounds {
  std::optional<std::int64_t> begin;
  std::optional<std::int64_t> end;
  std::int64_t step = 1;
};
[[nodiscard]] Value get_slice(Runtime& runtime, const Value& object, const SliceBounds& bounds);

/// Returns what `for` goes through: items, keys, characters. A generator gives its items once.
[[nodiscard]] List iterate(Runtime& runtime, const Value& value);

/// Returns `len(value)`.
[[nodiscard]] std::int64_t length(Runtime& runtime, const Value& value);

/// Returns the item of an object under "a.b.0", as the `attribute` of filters names it. Where a
/// step finds nothing, `when_undefined` takes its place unless it is null.
[[nodiscard]] Value get_path(Runtime& runtime, const Value& object, const Value& path,
                             const Value* when_undefined = nullptr);

/// Returns the UTF-8 text of a value, or of an undefined one the empty text.
[[nodiscard]] std::string text_of(Runtime& runtime, const Value& value);
/// Makes a string and charges the budget for it.
[[nodiscard]] Value make_string(Runtime& runtime, std::string text);

}  // namespace tidemill::engines::chat
