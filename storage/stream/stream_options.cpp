// SPDX-License-Identifier: Apache-2.0
// Checks of a stream's declaration.
#include "storage/stream/stream_options.hpp"

#include <algorithm>
#include <set>

namespace tidemill::storage {
namespace {

DType element_type(ColumnType type) noexcept {
  switch (type) {
    case ColumnType::kInt32: return DType::kI32;
    case ColumnType::kFloat: return DType::kF32;
    case ColumnType::kU8:
    case ColumnType::kBytes:
    case ColumnType::kString:
    case ColumnType::kDouble:
    case ColumnType::kUInt64: return DType::kU8;
  }
  return DType::kU8;
}

bool values_fit(CellValues values, ColumnType type) noexcept {
  switch (values) {
    case CellValues::kAny: return true;
    case CellValues::kFinite: return type == ColumnType::kFloat || type == ColumnType::kDouble;
    case CellValues::kNotNegative: return type == ColumnType::kInt32;
    case CellValues::kFlags: return type == ColumnType::kU8;
  }
  return false;
}

Status check_rule(const StreamOptions& options, const ColumnOptions& column) {
  const CellRule& rule = column.rule;
  if (rule.min_elements > rule.max_elements || rule.multiple_of == 0) {
    return invalid_argument("rule: no number of elements follows it");
  }
  for (const std::string& other : {rule.as_long_as, rule.counts}) {
    if (!other.empty() && (other == column.name || !options.find_column(other))) {
      return invalid_argument("rule: column '" + other + "' is not another declared column");
    }
  }
  if (!values_fit(rule.values, column.type) ||
      (!rule.counts.empty() && column.type != ColumnType::kUInt64)) {
    return invalid_argument("rule: does not apply to the column's type");
  }
  return {};
}

Status check_columns(const StreamOptions& options) {
  if (options.columns.empty() || options.columns.size() > kMaxColumns) {
    return invalid_argument("columns: " + std::to_string(options.columns.size()) +
                            " declared, must be 1 to " + std::to_string(kMaxColumns));
  }
  std::set<std::string_view> names;
  for (const ColumnOptions& column : options.columns) {
    if (column.name.empty() || !names.insert(column.name).second) {
      return invalid_argument("columns: name '" + column.name + "' is empty or declared twice");
    }
  }
  for (const ColumnOptions& column : options.columns) {
    TIDEMILL_RETURN_IF_ERROR(check_rule(options, column).with_context("column " + column.name));
  }
  return {};
}

Status check_task_columns(const StreamOptions& options, const TaskOptions& task,
                          std::set<std::string_view>& written) {
  std::set<std::string_view> inputs;
  for (const std::string& input : task.inputs) {
    if (!options.find_column(input) || !inputs.insert(input).second) {
      return invalid_argument("inputs: column '" + input + "' is not declared, or named twice");
    }
  }
  if (inputs.empty()) {
    return invalid_argument("inputs: a task needs at least one");
  }
  for (const std::string& input : task.optional_inputs) {
    if (!options.find_column(input) || !inputs.insert(input).second) {
      return invalid_argument("optional_inputs: column '" + input +
                              "' is not declared, or named twice");
    }
  }
  const auto check_written = [&](const char* field, const std::vector<std::string>& outputs) {
    for (const std::string& output : outputs) {
      const char* fault = !options.find_column(output)     ? "' is not declared"
                          : inputs.contains(output)        ? "' is an input too"
                          : !written.insert(output).second ? "' is written twice"
                                                           : nullptr;
      if (fault != nullptr) {
        return invalid_argument(std::string(field) + ": column '" + output + fault);
      }
    }
    return Status();
  };
  TIDEMILL_RETURN_IF_ERROR(check_written("outputs", task.outputs));
  TIDEMILL_RETURN_IF_ERROR(check_written("optional_outputs", task.optional_outputs));
  return check_written("progress", task.progress);
}

// Progress may change and vanish, so no task may depend on it.
Status check_progress(const StreamOptions& options) {
  std::set<std::string_view> progress;
  for (const TaskOptions& task : options.tasks) {
    progress.insert(task.progress.begin(), task.progress.end());
  }
  for (const TaskOptions& task : options.tasks) {
    for (const auto* inputs : {&task.inputs, &task.optional_inputs}) {
      for (const std::string& input : *inputs) {
        if (progress.contains(input)) {
          return invalid_argument("task " + task.name + ": inputs: column '" + input +
                                  "' is progress");
        }
      }
    }
  }
  if (progress.contains(options.accept_column)) {
    return invalid_argument("accept_column: '" + options.accept_column + "' is progress");
  }
  return {};
}

Status check_task(const StreamOptions& options, const TaskOptions& task,
                  std::set<std::string_view>& written) {
  TIDEMILL_RETURN_IF_ERROR(check_task_columns(options, task, written));
  if (task.unit == DeliveryUnit::kGroup && options.max_group_size == 0) {
    return invalid_argument("unit: takes groups, but max_group_size is 0");
  }
  if (task.lease <= Duration::zero() || task.lease > kMaxLease) {
    return invalid_argument("lease: must be above 0 and at most a year");
  }
  return {};
}

}  // namespace

std::uint64_t element_bytes(ColumnType type) noexcept {
  const bool wide = type == ColumnType::kDouble || type == ColumnType::kUInt64;
  return wide ? sizeof(std::uint64_t) : dtype_bytes(element_type(type));
}

bool cell_fits(ColumnType type, DType dtype, std::uint64_t bytes) noexcept {
  return bytes == 0 || (dtype == element_type(type) && bytes % element_bytes(type) == 0);
}

std::optional<ColumnId> StreamOptions::find_column(std::string_view column) const {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].name == column) {
      return ColumnId{static_cast<std::uint32_t>(i)};
    }
  }
  return std::nullopt;
}

std::optional<TaskId> StreamOptions::find_task(std::string_view task) const {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].name == task) {
      return TaskId{static_cast<std::uint32_t>(i)};
    }
  }
  return std::nullopt;
}

Status check_options(const StreamOptions& options) {
  const std::string where = "stream " + options.name;
  TIDEMILL_RETURN_IF_ERROR(check_columns(options).with_context(where));
  if (options.tasks.empty() || options.tasks.size() > kMaxTasks) {
    return invalid_argument(where + ": tasks: " + std::to_string(options.tasks.size()) +
                            " declared, must be 1 to " + std::to_string(kMaxTasks));
  }
  if (options.max_group_size > kMaxGroupSize) {
    return invalid_argument(where + ": max_group_size: " + std::to_string(options.max_group_size) +
                            ", must be at most " + std::to_string(kMaxGroupSize));
  }
  std::set<std::string_view> names;
  std::set<std::string_view> written;
  for (const TaskOptions& task : options.tasks) {
    if (task.name.empty() || !names.insert(task.name).second) {
      return invalid_argument(where + ": tasks: name '" + task.name +
                              "' is empty or declared twice");
    }
    TIDEMILL_RETURN_IF_ERROR(
        check_task(options, task, written).with_context(where + ": task " + task.name));
  }
  TIDEMILL_RETURN_IF_ERROR(check_progress(options).with_context(where));
  if (!options.accept_column.empty() && !options.find_column(options.accept_column)) {
    return invalid_argument(where + ": accept_column: '" + options.accept_column +
                            "' is not declared");
  }
  if (options.limit_bytes != 0 &&
      (options.group_bytes == 0 || options.group_bytes > options.limit_bytes)) {
    return invalid_argument(where + ": limit_bytes: " + std::to_string(options.limit_bytes) +
                            " cannot hold one group; group_bytes is " +
                            std::to_string(options.group_bytes) + ", must be 1 to the limit");
  }
  return {};
}

}  // namespace tidemill::storage
