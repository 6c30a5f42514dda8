// SPDX-License-Identifier: Apache-2.0
// Admission and writing: how rows enter the index and become ready.
#include "storage/stream/stream_index.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace tidemill::storage {
namespace {

// Far above the size of any cell, and small enough that sums of cells do not overflow.
constexpr std::uint64_t kMaxCellBytes = std::uint64_t{1} << 40U;

std::uint64_t bit_of(ColumnId column) noexcept {
  return std::uint64_t{1} << column.value;
}

std::uint64_t bits_of(const StreamOptions& options, const std::vector<std::string>& names) {
  std::uint64_t bits = 0;
  for (const std::string& name : names) {
    bits |= bit_of(*options.find_column(name));
  }
  return bits;
}

std::string sample(SampleId id) {
  return "sample " + std::to_string(id.value);
}

bool is_taken(CellState state) noexcept {
  return state == CellState::kLeased || state == CellState::kAcked || state == CellState::kStale;
}

}  // namespace

StreamIndex::StreamIndex(StreamOptions options) : options_(std::move(options)) {
  tasks_.reserve(options_.tasks.size());
  for (const TaskOptions& task : options_.tasks) {
    tasks_.emplace_back(task);
    tasks_.back().inputs = bits_of(options_, task.inputs);
    tasks_.back().outputs = bits_of(options_, task.outputs);
    tasks_.back().optional_outputs = bits_of(options_, task.optional_outputs);
    tasks_.back().progress = bits_of(options_, task.progress);
  }
  if (!options_.accept_column.empty()) {
    accept_bit_ = bit_of(*options_.find_column(options_.accept_column));
  }
}

Result<std::unique_ptr<StreamIndex>> StreamIndex::create(StreamOptions options) {
  TIDEMILL_RETURN_IF_ERROR(check_options(options));
  return std::unique_ptr<StreamIndex>(new StreamIndex(std::move(options)));
}

// -- lookup -------------------------------------------------------------------

const internal::Row* StreamIndex::find_row(SampleId id) const {
  ++work_.rows;
  const auto row = rows_.find(id);
  return row == rows_.end() ? nullptr : &row->second;
}

internal::Row* StreamIndex::find_row(SampleId id) {
  return const_cast<Row*>(std::as_const(*this).find_row(id));
}

const SampleRow* StreamIndex::find(SampleId row) const {
  const Row* found = find_row(row);
  return found == nullptr ? nullptr : &found->info;
}

const RowFacts& StreamIndex::facts(SampleId row) const {
  const Row* found = find_row(row);
  TIDEMILL_CHECK(found != nullptr) << row.value;
  return found->facts;
}

Status StreamIndex::refuse(Refusal reason, Errc code, const std::string& detail) {
  ++refused_[static_cast<std::size_t>(reason)];
  return {code, std::string(refusal_name(reason)) + ": stream " + options_.name + ": " + detail};
}

// -- writing ------------------------------------------------------------------

Status StreamIndex::put(const SampleRow& row, std::span<const CellInfo> columns,
                        const RowFacts& facts) {
  if (const std::optional<Fault> fault = check_cells(row.id, columns)) {
    return refuse(fault->reason, fault->detail);
  }
  Row* live = find_row(row.id);
  if (live != nullptr) {
    TIDEMILL_RETURN_IF_ERROR(check_live_row(*live, row, columns));
  } else {
    TIDEMILL_RETURN_IF_ERROR(check_new_row(row));
    live = &admit(row);
  }
  write(*live, columns, facts);
  return {};
}

std::optional<StreamIndex::Fault> StreamIndex::check_cells(SampleId row,
                                                           std::span<const CellInfo> cells) const {
  for (const CellInfo& cell : cells) {
    if (cell.column.value >= options_.columns.size()) {
      return Fault{Refusal::kUnknownColumn, column_text(row, cell.column) + ": is not declared"};
    }
    if (cell.bytes > kMaxCellBytes ||
        !cell_fits(options_.columns[cell.column.value].type, cell.dtype, cell.bytes)) {
      return Fault{Refusal::kBadColumn,
                   column_text(row, cell.column) + ": " + std::to_string(cell.bytes) +
                       " bytes of " + std::string(dtype_name(cell.dtype)) + " do not fit its type"};
    }
    if (!cell.fault.empty()) {
      return Fault{Refusal::kBadColumn, column_text(row, cell.column) + ": " + cell.fault};
    }
  }
  std::uint64_t seen = 0;
  for (const CellInfo& cell : cells) {
    if ((seen & bit_of(cell.column)) != 0) {
      return Fault{Refusal::kDuplicateColumn, column_text(row, cell.column) + ": written twice"};
    }
    seen |= bit_of(cell.column);
  }
  return std::nullopt;
}

std::string StreamIndex::column_text(SampleId row, ColumnId column) const {
  return sample(row) + ", column " +
         (column.value < options_.columns.size() ? options_.columns[column.value].name
                                                 : "number " + std::to_string(column.value));
}

Status StreamIndex::check_live_row(const Row& row, const SampleRow& named,
                                   std::span<const CellInfo> columns) {
  if (named.group_size > 0 && (row.group->solo || named.group != row.info.group)) {
    return refuse(Refusal::kGroupMismatch,
                  sample(named.id) + " is not in group " + std::to_string(named.group.value));
  }
  for (const CellInfo& written : columns) {
    if ((row.columns & bit_of(written.column)) != 0) {
      return refuse(Refusal::kDuplicateColumn,
                    column_text(named.id, written.column) + ": already written");
    }
  }
  return {};
}

Status StreamIndex::check_new_row(const SampleRow& row) {
  // Ids increase in admission order, so the row of a smaller id has left or comes too late.
  if (row.id.value < next_row_ || row.id.value == kNoStep) {
    return refuse(
        Refusal::kRowRetired, Errc::kNotFound,
        sample(row.id) + " has left; new samples have ids from " + std::to_string(next_row_));
  }
  if (row.group_size == 0) {
    return check_byte_limit(row);
  }
  const std::string where = sample(row.id) + ", group " + std::to_string(row.group.value);
  if (options_.max_group_size == 0) {
    return refuse(Refusal::kNoGroups, where);
  }
  if (row.group_size > options_.max_group_size) {
    return refuse(Refusal::kBadGroup, where + ": size " + std::to_string(row.group_size) +
                                          ", at most " + std::to_string(options_.max_group_size));
  }
  if (const auto group = groups_.find(row.group); group != groups_.end()) {
    return check_group_index(group->second, row);
  }
  if (row.group.value < next_group_ || row.group.value == kNoStep) {
    return refuse(Refusal::kGroupRetired, Errc::kNotFound,
                  where + ": has left; new groups have ids from " + std::to_string(next_group_));
  }
  if (row.index_in_group >= row.group_size) {
    return refuse(Refusal::kBadGroup, where + ": index " + std::to_string(row.index_in_group) +
                                          " in a group of " + std::to_string(row.group_size));
  }
  return check_byte_limit(row);
}

Status StreamIndex::check_group_index(const Group& group, const SampleRow& row) {
  const std::string where = sample(row.id) + ", group " + std::to_string(row.group.value);
  if (group.all_admitted()) {
    return refuse(Refusal::kGroupFull, where + ": already has all " + std::to_string(group.size));
  }
  if (row.group_size != group.size || row.index_in_group >= group.size ||
      group.admitted[row.index_in_group] != 0) {
    return refuse(Refusal::kBadGroup, where + ": index " + std::to_string(row.index_in_group) +
                                          " of " + std::to_string(row.group_size) +
                                          " is taken, or contradicts the group's size " +
                                          std::to_string(group.size));
  }
  return {};
}

Status StreamIndex::check_byte_limit(const SampleRow& row) {
  if (options_.limit_bytes == 0 || bytes_reserved_ <= options_.limit_bytes - options_.group_bytes) {
    return {};
  }
  return refuse(Refusal::kByteLimit, Errc::kResourceExhausted,
                sample(row.id) + ": " + std::to_string(bytes_reserved_) +
                    " bytes are in use or reserved for live groups; another group needs " +
                    std::to_string(options_.group_bytes) + ", the limit is " +
                    std::to_string(options_.limit_bytes));
}

internal::Group& StreamIndex::group_for(const SampleRow& row) {
  const bool solo = row.group_size == 0;
  if (!solo) {
    if (const auto known = groups_.find(row.group); known != groups_.end()) {
      return known->second;
    }
    next_group_ = row.group.value + 1;
  }
  Group& group = solo ? solos_[row.id] : groups_[row.group];
  group.id = row.group;
  group.solo = solo;
  group.size = std::max(1U, row.group_size);
  group.first = row.id;
  group.admitted.resize(row.group_size);
  group.cells.resize(tasks_.size());
  bytes_reserved_ += reservation(group);
  if (accept_bit_ != 0) {
    held_.running += group.size;
  }
  return group;
}

internal::Row& StreamIndex::admit(const SampleRow& info) {
  Group& group = group_for(info);
  ++group.num_admitted;
  group.live.push_back(info.id);
  if (!group.solo) {
    group.admitted[info.index_in_group] = 1;
  }
  Row& row = rows_[info.id];
  row.info = info;
  row.group = &group;
  row.num_open = static_cast<std::uint32_t>(tasks_.size());
  row.cells.resize(tasks_.size());
  next_row_ = info.id.value + 1;
  ++totals_.admitted;
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    sync(row, task);
  }
  return row;
}

void StreamIndex::write(Row& row, std::span<const CellInfo> columns, const RowFacts& facts) {
  std::uint64_t bytes = 0;
  std::uint64_t written = 0;
  for (const CellInfo& column : columns) {
    written |= bit_of(column.column);
    bytes += column.bytes;
  }
  row.columns |= written;
  row.bytes += bytes;
  add_bytes(*row.group, bytes);
  const bool older = facts.oldest_step < row.facts.oldest_step;
  row.facts.oldest_step = std::min(row.facts.oldest_step, facts.oldest_step);
  if (facts.tokens != kNoTokens) {
    row.facts.tokens = facts.tokens;
  }
  if ((written & accept_bit_) != 0) {
    accept(row);
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    const CellState state = row.cells[task].state;
    // The bits that remain are the missing columns.
    const int missing = std::popcount(tasks_[task].inputs & ~row.columns);
    if (state == CellState::kPending && missing == 0) {
      set_state(row, task, CellState::kReady);
    } else if (state == CellState::kReady && older) {
      sync(row, task);
    }
  }
}

std::uint64_t StreamIndex::reservation(const Group& group) const noexcept {
  return options_.limit_bytes == 0 ? group.bytes : std::max(group.bytes, options_.group_bytes);
}

void StreamIndex::add_bytes(Group& group, std::uint64_t bytes) {
  bytes_reserved_ -= reservation(group);
  group.bytes += bytes;
  bytes_reserved_ += reservation(group);
  bytes_used_ += bytes;
}

void StreamIndex::remove_bytes(Group& group, std::uint64_t bytes) {
  bytes_reserved_ -= reservation(group);
  group.bytes -= bytes;
  bytes_reserved_ += reservation(group);
  bytes_used_ -= bytes;
}

// -- versions -----------------------------------------------------------------

Status StreamIndex::set_version(std::uint64_t step) {
  if (step < version_) {
    return refuse(Refusal::kVersionRegress, Errc::kStaleVersion,
                  "version " + std::to_string(step) + " after " + std::to_string(version_));
  }
  restore_version(step);
  return {};
}

void StreamIndex::restore_version(std::uint64_t step) {
  version_ = step;
  for (Task& task : tasks_) {
    task.ready.set_version(step);
    ++task.revision;
  }
}

// -- cells --------------------------------------------------------------------

void StreamIndex::set_state(Row& row, std::uint32_t task, CellState state) {
  Cell& cell = row.cells[task];
  internal::GroupCell& group = row.group->cells[task];
  if (cell.state == CellState::kReady) {
    --group.ready;
    --tasks_[task].num_ready;
  }
  if (is_taken(cell.state)) {
    --group.taken;
  }
  cell.state = state;
  if (state == CellState::kReady) {
    ++group.ready;
    ++tasks_[task].num_ready;
  }
  if (is_taken(state)) {
    ++group.taken;
  }
  sync(row, task);
}

void StreamIndex::sync(const Row& row, std::uint32_t task) {
  Task& owner = tasks_[task];
  if (owner.options.unit == DeliveryUnit::kGroup) {
    if (!row.group->solo) {
      sync_group(*row.group, task);
    }
    return;
  }
  ++work_.units;
  const CellState state = row.cells[task].state;
  if (state == CellState::kReady) {
    owner.ready.put(row.unit(), row.facts.oldest_step);
    ++owner.revision;
  } else {
    owner.ready.erase(row.unit());
  }
  if (state == CellState::kPending) {
    owner.pending.insert(row.unit());
  } else {
    owner.pending.erase(row.unit());
  }
}

void StreamIndex::sync_group(const Group& group, std::uint32_t task) {
  ++work_.units;
  Task& owner = tasks_[task];
  const internal::GroupCell& cell = group.cells[task];
  if (group.closed) {  // its rows are being removed one by one
    owner.ready.erase(group.unit());
    owner.pending.erase(group.unit());
    ++owner.revision;
    return;
  }
  if (cell.ready > 0 && cell.ready == group.size - group.num_retired) {
    std::uint64_t oldest_step = kNoStep;
    for (const SampleId id : group.live) {
      oldest_step = std::min(oldest_step, find_row(id)->facts.oldest_step);
    }
    owner.ready.put(group.unit(), oldest_step);
    owner.pending.erase(group.unit());
    ++owner.revision;
    return;
  }
  owner.ready.erase(group.unit());
  if (cell.taken > 0) {
    owner.pending.erase(group.unit());
  } else {
    owner.pending.insert(group.unit());
  }
}

}  // namespace tidemill::storage
