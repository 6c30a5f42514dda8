// SPDX-License-Identifier: Apache-2.0
#include "storage/stream/cell_checker.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace tidemill::storage {
namespace {

// Reads element `index` of `bytes`, which may be at any address.
template <class T>
T element(std::span<const std::byte> bytes, std::uint64_t index) {
  T value{};
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Returns the first element for which `is_bad` holds, in words, or "". Looks at blocks of elements
// without a branch for each, which the compiler turns into vector instructions.
template <class T, class IsBad>
std::string first_bad(const Buffer& cell, IsBad is_bad, const char* rule) {
  using Word = std::conditional_t<
      sizeof(T) == 8, std::uint64_t,
      std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint8_t>>;  // as wide as an element
  constexpr std::uint64_t kBlock = 256;
  const std::span<const std::byte> bytes = cell.bytes();
  const std::uint64_t count = bytes.size() / sizeof(T);
  for (std::uint64_t begin = 0; begin < count; begin += kBlock) {
    const std::uint64_t end = std::min(begin + kBlock, count);
    Word any = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      any |= static_cast<Word>(is_bad(element<T>(bytes, i)));
    }
    for (std::uint64_t i = begin; any != 0 && i < end; ++i) {
      const T value = element<T>(bytes, i);
      if (is_bad(value)) {
        return "element " + std::to_string(i) + " is " + std::to_string(value) + rule;
      }
    }
  }
  return "";
}

// Returns whether a number is infinite or none: all bits of its exponent are set. Unlike
// `std::isfinite`, this compiles to vector instructions.
bool is_not_finite(float x) {
  constexpr std::uint32_t kExponent = 0x7F80'0000;
  return (std::bit_cast<std::uint32_t>(x) & kExponent) == kExponent;
}
bool is_not_finite(double x) {
  constexpr std::uint64_t kExponent = 0x7FF0'0000'0000'0000;
  return (std::bit_cast<std::uint64_t>(x) & kExponent) == kExponent;
}

std::string bad_value(const ColumnOptions& column, const Buffer& cell) {
  constexpr const char* kFiniteRule = ", must be finite";
  switch (column.rule.values) {
    case CellValues::kAny: return "";
    case CellValues::kFinite:
      return column.type == ColumnType::kDouble
                 ? first_bad<double>(
                       cell, [](double x) { return is_not_finite(x); }, kFiniteRule)
                 : first_bad<float>(
                       cell, [](float x) { return is_not_finite(x); }, kFiniteRule);
    case CellValues::kNotNegative:
      return first_bad<std::int32_t>(
          cell, [](std::int32_t x) { return x < 0; }, ", must not be negative");
    case CellValues::kFlags:
      return first_bad<std::uint8_t>(
          cell, [](std::uint8_t x) { return x > 1; }, ", must be 0 or 1");
  }
  return "";
}

std::string bad_length(const CellRule& rule, std::uint64_t elements) {
  if (elements < rule.min_elements) {
    return std::to_string(elements) + " elements, must be at least " +
           std::to_string(rule.min_elements);
  }
  if (elements > rule.max_elements) {
    return std::to_string(elements) + " elements, must be at most " +
           std::to_string(rule.max_elements);
  }
  if (elements % rule.multiple_of != 0) {
    return std::to_string(elements) + " elements, must be a multiple of " +
           std::to_string(rule.multiple_of);
  }
  return "";
}

// Returns the sum of the last elements of all records, or nothing if it is above `limit`.
std::optional<std::uint64_t> sum_of_records(const Buffer& cell, std::uint64_t record,
                                            std::uint64_t limit) {
  std::uint64_t sum = 0;
  const std::span<const std::byte> bytes = cell.bytes();
  for (std::uint64_t i = record - 1; i < bytes.size() / sizeof(std::uint64_t); i += record) {
    const auto count = element<std::uint64_t>(bytes, i);
    if (count > limit - sum) {
      return std::nullopt;
    }
    sum += count;
  }
  return sum;
}

}  // namespace

CellChecker::CellChecker(const StreamOptions& options) : columns_(options.columns) {
  for (const ColumnOptions& column : columns_) {
    rules_.push_back(
        {options.find_column(column.rule.as_long_as), options.find_column(column.rule.counts)});
  }
}

std::optional<std::uint64_t> CellChecker::elements_of(SampleId row, ColumnId column,
                                                      std::span<const ColumnValue> cells,
                                                      const ColumnStore& store) const {
  const auto written = std::find_if(cells.begin(), cells.end(),
                                    [&](const ColumnValue& cell) { return cell.column == column; });
  const Buffer* cell = written != cells.end() ? &written->value : store.find(row, column);
  if (cell == nullptr) {
    return std::nullopt;
  }
  return cell->size_bytes() / element_bytes(columns_[column.value].type);
}

std::string CellChecker::bad_relation(SampleId row, std::span<const ColumnValue> cells,
                                      std::size_t index, const ColumnStore& store) const {
  const Buffer& cell = cells[index].value;
  const ColumnOptions& column = columns_[cells[index].column.value];
  const Rule& rule = rules_[cells[index].column.value];
  if (rule.as_long_as) {
    const std::uint64_t elements = cell.size_bytes() / element_bytes(column.type);
    const auto expected = elements_of(row, *rule.as_long_as, cells, store);
    if (elements != expected) {
      return std::to_string(elements) + " elements, but " + column.rule.as_long_as + " has " +
             (expected ? std::to_string(*expected) : "no cell");
    }
  }
  if (rule.counts) {
    const auto expected = elements_of(row, *rule.counts, cells, store);
    if (!expected || sum_of_records(cell, column.rule.multiple_of, *expected) != *expected) {
      return "the counts do not add up to the elements of " + column.rule.counts + ", which has " +
             (expected ? std::to_string(*expected) : "no cell");
    }
  }
  return "";
}

std::string CellChecker::fault_of(SampleId row, std::span<const ColumnValue> cells,
                                  std::size_t index, const ColumnStore& store) const {
  const ColumnId id = cells[index].column;
  const Buffer& cell = cells[index].value;
  if (id.value >= columns_.size()) {
    return "";
  }
  if (!cell.resolved()) {
    return "its " + std::to_string(cell.size_bytes()) + " bytes are not in this process";
  }
  const ColumnOptions& column = columns_[id.value];
  if (!cell_fits(column.type, cell.identity().dtype, cell.size_bytes())) {
    return "";
  }
  std::string fault = bad_length(column.rule, cell.size_bytes() / element_bytes(column.type));
  if (fault.empty()) {
    fault = bad_relation(row, cells, index, store);
  }
  return fault.empty() ? bad_value(column, cell) : fault;
}

}  // namespace tidemill::storage
