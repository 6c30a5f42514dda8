// SPDX-License-Identifier: Apache-2.0
// Filters over sequences and mappings.
#include "engines/chat/sequence_filters.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

// Returns the key by which a filter compares an item: the item or one of its attributes. Strings
// are converted to lower case unless the comparison is case-sensitive.
class KeyOf {
public:
  KeyOf(Runtime& runtime, const Value* attribute, bool case_sensitive,
        const Value* when_undefined = nullptr)
      : runtime_(runtime), case_sensitive_(case_sensitive) {
    if (attribute != nullptr && !attribute->is_none()) {
      attribute_ = *attribute;
    }
    if (when_undefined != nullptr && !when_undefined->is_none()) {
      when_undefined_ = *when_undefined;
    }
  }

  /// Returns the item or its attribute as it is.
  [[nodiscard]] Value original(const Value& item) const {
    if (!attribute_) {
      return item;
    }
    return get_path(runtime_, item, *attribute_, when_undefined_ ? &*when_undefined_ : nullptr);
  }

  Value operator()(const Value& item) const {
    Value key = original(item);
    if (case_sensitive_ || !key.is_string()) {
      return key;
    }
    return make_string(runtime_, to_lower(key.as_string()));
  }

private:
  Runtime& runtime_;
  std::optional<Value> attribute_;
  std::optional<Value> when_undefined_;
  bool case_sensitive_;
};

// Returns the indices of items in the order of their keys. The sort is stable in both directions.
std::vector<std::size_t> sorted_indices(Runtime& runtime, const List& keys, bool descending) {
  std::vector<std::size_t> indices(keys.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    indices[i] = i;
  }
  std::stable_sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) {
    runtime.budget.step();
    const int sign = order(runtime, keys[a], keys[b]);
    return descending ? sign > 0 : sign < 0;
  });
  return indices;
}

// Sorts items by the keys with the same indices.
List sorted(Runtime& runtime, List items, const List& keys, bool descending) {
  List result;
  for (const std::size_t index : sorted_indices(runtime, keys, descending)) {
    result.push_back(std::move(items[index]));
  }
  return result;
}

// Returns the smallest or largest item. Of equal items, the first one is returned.
Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments, int wanted_sign) {
  const BoundArguments bound("min or max", arguments, {"case_sensitive", "attribute"});
  const List items = iterate(runtime, input);
  if (items.empty()) {
    return Value::undefined("No aggregated item, sequence was empty.");
  }
  const KeyOf key_of(runtime, bound.find(1), bound.flag(0, false));
  const Value* best = &items.front();
  Value best_key = key_of(*best);
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    if (order(runtime, key, best_key) * wanted_sign > 0) {
      best = &items[i];
      best_key = std::move(key);
    }
  }
  return *best;
}

Value generator(Runtime& runtime, List items) {
  return make_sequence(runtime, std::move(items), SequenceKind::kGenerator);
}

// What select and reject test: the item (select, reject) or an attribute of it (selectattr,
// rejectattr).
enum class Subject : std::uint8_t { kItem, kAttribute };

// Implements the four filters. The first arguments name the attribute, if any, and the test.
Value choose(Runtime& runtime, const Value& input, Arguments arguments, Subject subject,
             bool wanted) {
  if (!input.truthy()) {
    return generator(runtime, {});
  }
  List& given = arguments.positional;
  const auto take_first = [&given]() -> std::optional<Value> {
    if (given.empty()) {
      return std::nullopt;
    }
    Value first = std::move(given.front());
    given.erase(given.begin());
    return first;
  };
  std::optional<Value> attribute;
  if (subject == Subject::kAttribute) {
    attribute = take_first();
    if (!attribute) {
      fail("Missing parameter for attribute name");
    }
  }
  Test test = nullptr;
  if (const auto name = take_first()) {
    test = name->is_string() ? find_test(name->as_string()) : nullptr;
    if (test == nullptr) {
      fail("no test named '" + text_of(runtime, *name) + "'");
    }
  }
  const KeyOf value_of(runtime, attribute ? &*attribute : nullptr, /*case_sensitive=*/true);
  List chosen;
  for (const Value& item : iterate(runtime, input)) {
    runtime.budget.step();
    const Value value = value_of.original(item);
    const bool holds = test == nullptr ? value.truthy() : test(runtime, value, arguments);
    if (holds == wanted) {
      chosen.push_back(item);
    }
  }
  return generator(runtime, std::move(chosen));
}

List ordered_items(Runtime& runtime, const Value& input) {
  if (input.is_sequence(SequenceKind::kGenerator)) {
    fail("'generator' object is not reversible");
  }
  return iterate(runtime, input);
}

}  // namespace

Value filter_length(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("length", arguments, {});
  return length(runtime, input);
}

Value filter_list(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("list", arguments, {});
  return make_sequence(runtime, iterate(runtime, input));
}

Value filter_first(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("first", arguments, {});
  const List items = iterate(runtime, input);
  if (items.empty()) {
    return Value::undefined("No first item, sequence was empty.");
  }
  return items.front();
}

Value filter_last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("last", arguments, {});
  const List items = ordered_items(runtime, input);
  if (items.empty()) {
    return Value::undefined("No last item, sequence was empty.");
  }
  return input.is_markup() ? as_markup(runtime, items.back()) : items.back();
}

Value filter_reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("reverse", arguments, {});
  List items = iterate(runtime, input);
  std::reverse(items.begin(), items.end());
  if (input.is_sequence(SequenceKind::kGenerator)) {
    return make_sequence(runtime, std::move(items));
  }
  if (!input.is_string()) {
    return generator(runtime, std::move(items));
  }
  std::string text;
  for (const Value& item : items) {
    text += item.as_string();
  }
  runtime.budget.allocate(text.size());
  return string_like(input, std::move(text));
}

Value filter_items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("items", arguments, {});
  if (input.is_undefined()) {
    return generator(runtime, {});
  }
  if (!input.is_dict()) {
    fail("Can only get item pairs from a mapping.");
  }
  List pairs;
  for (const Dict::Entry& entry : input.as_dict().entries()) {
    pairs.push_back(make_sequence(runtime, {entry.key, entry.value}, SequenceKind::kTuple));
  }
  return generator(runtime, std::move(pairs));
}

Value filter_dictsort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  require_defined(input);
  if (!input.is_dict()) {
    fail("dictsort: the input must be a mapping");
  }
  const std::string by = bound.find(1) == nullptr ? "key" : text_of(runtime, *bound.find(1));
  if (by != "key" && by != "value") {
    fail("You can only sort by either \"key\" or \"value\"");
  }
  const KeyOf key_of(runtime, nullptr, bound.flag(0, false));
  List pairs;
  List keys;
  for (const Dict::Entry& entry : input.as_dict().entries()) {
    pairs.push_back(make_sequence(runtime, {entry.key, entry.value}, SequenceKind::kTuple));
    keys.push_back(key_of(by == "key" ? entry.key : entry.value));
  }
  return make_sequence(runtime, sorted(runtime, std::move(pairs), keys, bound.flag(2, false)));
}

Value filter_sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.flag(1, false);
  // One string may name several attributes, separated by commas.
  std::vector<KeyOf> keys_of;
  if (bound.find(2) != nullptr && bound.find(2)->is_string()) {
    std::string_view rest = bound.find(2)->as_string();
    while (true) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const Value attribute(rest.substr(0, comma));
      keys_of.emplace_back(runtime, &attribute, case_sensitive);
      if (comma == rest.size()) {
        break;
      }
      rest.remove_prefix(comma + 1);
    }
  } else {
    keys_of.emplace_back(runtime, bound.find(2), case_sensitive);
  }
  List items = iterate(runtime, input);
  List keys;
  for (const Value& item : items) {
    List parts;
    for (const KeyOf& key_of : keys_of) {
      parts.push_back(key_of(item));
    }
    keys.push_back(make_sequence(runtime, std::move(parts)));
  }
  return make_sequence(runtime, sorted(runtime, std::move(items), keys, bound.flag(0, false)));
}

Value filter_unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  const KeyOf key_of(runtime, bound.find(1), bound.flag(0, false));
  std::unordered_set<std::string> seen;
  List unique;
  for (const Value& item : iterate(runtime, input)) {
    const Value key = key_of(item);
    // All undefined values are equal. Identities of keys are never empty.
    auto identity = key.is_undefined() ? std::string() : key_identity(key);
    if (!identity) {
      fail("unhashable type: '" + std::string(key.type_name()) + "'");
    }
    runtime.budget.allocate(identity->size());
    if (seen.insert(*std::move(identity)).second) {
      unique.push_back(item);
    }
  }
  return generator(runtime, std::move(unique));
}

Value filter_min(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return extreme(runtime, input, arguments, -1);
}

Value filter_max(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return extreme(runtime, input, arguments, 1);
}

Value filter_batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("batch", arguments, {"linecount", "fill_with"});
  const Value& wanted = bound.require(0);
  const auto count = [](const List& items) { return static_cast<std::int64_t>(items.size()); };
  List batches;
  List batch;
  for (Value& item : iterate(runtime, input)) {
    runtime.budget.step();
    if (equal(Value(count(batch)), wanted)) {
      batches.push_back(make_sequence(runtime, std::exchange(batch, {})));
    }
    batch.push_back(std::move(item));
  }
  if (batch.empty()) {
    return generator(runtime, std::move(batches));
  }
  Value last = make_sequence(runtime, batch);
  const bool fills = bound.find(1) != nullptr && !bound.find(1)->is_none();
  if (fills && apply(runtime, CompareOp::kLess, Value(count(batch)), wanted)) {
    const Value missing = apply(runtime, BinaryOp::kSubtract, wanted, Value(count(batch)));
    const Value filling = make_sequence(runtime, {*bound.find(1)});
    last =
        apply(runtime, BinaryOp::kAdd, last, apply(runtime, BinaryOp::kMultiply, filling, missing));
  }
  batches.push_back(std::move(last));
  return generator(runtime, std::move(batches));
}

Value filter_slice(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("slice", arguments, {"slices", "fill_with"});
  (void)bound.require(0);
  const List items = iterate(runtime, input);
  const std::int64_t slices = bound.integer(0, 0);
  if (slices == 0) {
    fail("integer division or modulo by zero");
  }
  const auto count = static_cast<std::int64_t>(items.size());
  const bool fills = bound.find(1) != nullptr && !bound.find(1)->is_none();
  List result;
  auto next = items.begin();
  for (std::int64_t i = 0; i < slices; ++i) {
    runtime.budget.step();
    const bool has_extra = i < count % slices;
    const auto end = next + (count / slices + (has_extra ? 1 : 0));
    List slice(next, end);
    next = end;
    if (fills && !has_extra) {
      slice.push_back(*bound.find(1));
    }
    result.push_back(make_sequence(runtime, std::move(slice)));
  }
  return generator(runtime, std::move(result));
}

Value filter_groupby(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const KeyOf key_of(runtime, &bound.require(0), bound.flag(2, false), bound.find(1));
  const List items = iterate(runtime, input);
  List keys;
  for (const Value& item : items) {
    keys.push_back(key_of(item));
  }
  List groups;
  const auto put_group = [&](List group) {
    Value members = make_sequence(runtime, group);
    Value pair = make_sequence(runtime, {key_of.original(group.front()), std::move(members)},
                               SequenceKind::kTuple);
    pair.as_sequence().is_group = true;
    groups.push_back(std::move(pair));
  };
  List group;
  const Value* group_key = nullptr;
  for (const std::size_t index : sorted_indices(runtime, keys, /*descending=*/false)) {
    const Value& key = keys[index];
    if (group_key != nullptr && !apply(runtime, CompareOp::kEqual, *group_key, key)) {
      put_group(std::exchange(group, {}));
    }
    group_key = &key;
    group.push_back(items[index]);
  }
  if (!group.empty()) {
    put_group(std::move(group));
  }
  return make_sequence(runtime, std::move(groups));
}

Value filter_sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  Value total = bound.find(1) == nullptr ? Value(0) : *bound.find(1);
  if (total.is_string()) {
    fail("sum() can't sum strings");
  }
  const KeyOf value_of(runtime, bound.find(0), /*case_sensitive=*/true);
  for (const Value& item : iterate(runtime, input)) {
    runtime.budget.step();
    total = apply(runtime, BinaryOp::kAdd, total, value_of(item));
  }
  return total;
}

Value filter_join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const std::string separator =
      bound.find(0) == nullptr ? std::string() : text_of(runtime, *bound.find(0));
  const KeyOf value_of(runtime, bound.find(1), /*case_sensitive=*/true);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(runtime, input)) {
    if (!first) {
      runtime.budget.allocate(separator.size());
      out += separator;
    }
    first = false;
    append_text(value_of(item), runtime.budget, out);
  }
  return Value(std::move(out));
}

Value filter_map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!input.truthy()) {
    return generator(runtime, {});
  }
  List mapped;
  if (arguments.positional.empty()) {
    // map(attribute=..., default=...)
    const BoundArguments bound("map", arguments, {"attribute", "default"});
    const KeyOf value_of(runtime, &bound.require(0), /*case_sensitive=*/true, bound.find(1));
    for (const Value& item : iterate(runtime, input)) {
      runtime.budget.step();
      mapped.push_back(value_of.original(item));
    }
    return generator(runtime, std::move(mapped));
  }
  const Value& name = arguments.positional.front();
  const Filter filter = name.is_string() ? find_filter(name.as_string()) : nullptr;
  if (filter == nullptr) {
    fail("no filter named '" + text_of(runtime, name) + "'");
  }
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : iterate(runtime, input)) {
    runtime.budget.step();
    mapped.push_back(filter(runtime, item, rest));
  }
  return generator(runtime, std::move(mapped));
}

Value filter_select(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return choose(runtime, input, arguments, Subject::kItem, true);
}

Value filter_reject(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return choose(runtime, input, arguments, Subject::kItem, false);
}

Value filter_selectattr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return choose(runtime, input, arguments, Subject::kAttribute, true);
}

Value filter_rejectattr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return choose(runtime, input, arguments, Subject::kAttribute, false);
}

}  // namespace tidemill::engines::chat
