// SPDX-License-Identifier: Apache-2.0
// Operators, subscripts and iteration over values.
//
// All functions follow Python and throw `TemplateError` where Python raises.
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
/// Inserts an entry into a dict. Throws if the value `key` cannot be a key.
void insert(Runtime& runtime, Dict& dict, Value key, Value value);

/// Throws if `value` is undefined.
void require_defined(const Value& value);

[[nodiscard]] Value apply(Runtime& runtime, UnaryOp op, const Value& operand);
[[nodiscard]] Value apply(Runtime& runtime, BinaryOp op, const Value& left, const Value& right);
[[nodiscard]] bool apply(Runtime& runtime, CompareOp op, const Value& left, const Value& right);

/// Returns a negative number, zero or a positive number if `left` is less than, equal to or greater
/// than `right`.
[[nodiscard]] int order(Runtime& runtime, const Value& left, const Value& right);

/// Returns `object.name` like Jinja: an attribute, else an item.
[[nodiscard]] Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
/// Returns `object[key]` like Jinja: an item, else an attribute.
[[nodiscard]] Value get_item(Runtime& runtime, const Value& object, const Value& key);

/// The bounds of a slice. A bound that is not given is nullopt.
struct SliceBounds {
  std::optional<std::int64_t> begin;
  std::optional<std::int64_t> end;
  std::int64_t step = 1;
};
[[nodiscard]] Value get_slice(Runtime& runtime, const Value& object, const SliceBounds& bounds);

/// Returns the values that `for` iterates over: items, keys or characters. A generator returns its
/// items only once.
[[nodiscard]] List iterate(Runtime& runtime, const Value& value);

/// Returns `len(value)`.
[[nodiscard]] std::int64_t length(Runtime& runtime, const Value& value);

/// Returns the item of an object at a path such as "a.b.0", the syntax of the `attribute` argument
/// of filters. If a step of the path finds nothing, `when_undefined` is used instead unless it is
/// null.
[[nodiscard]] Value get_path(Runtime& runtime, const Value& object, const Value& path,
                             const Value* when_undefined = nullptr);

/// Returns the UTF-8 text of a value. An undefined value has the empty text.
[[nodiscard]] std::string text_of(Runtime& runtime, const Value& value);
/// Makes a string and charges the budget for it.
[[nodiscard]] Value make_string(Runtime& runtime, std::string text);

}  // namespace tidemill::engines::chat
