// SPDX-License-Identifier: Apache-2.0
// Admission and writing: how rows enter the index and become ready.
#include "storage/stream/stream_index.hpp"

#include <algorithm>
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

std::string sample_of_group(const SampleRow& row) {
  return sample(row.id) + ", group " + std::to_string(row.group.value);
}

bool is_taken(CellState state) noexcept {
  return state == CellState::kLeased || state == CellState::kAcked || state == CellState::kStale;
}

}  // namespace

StreamIndex::StreamIndex(StreamOptions options)
    : options_(std::move(options)),
      rows_(options_.tasks.size()),
      groups_(options_.tasks.size()),
      leases_(options_.tasks.size()) {
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
  return rows_.find(id.value);
}

internal::Row* StreamIndex::find_row(SampleId id) {
  return const_cast<Row*>(std::as_const(*this).find_row(id));
}

const internal::Row* StreamIndex::next_of(const Row& row) const {
  return row.next_in_group == kNoSlot ? nullptr : &rows_[row.next_in_group];
}

internal::Row* StreamIndex::next_of(const Row& row) {
  return const_cast<Row*>(std::as_const(*this).next_of(row));
}

const internal::Row* StreamIndex::first_of(const Group& group) const {
  return group.first_live == kNoSlot ? nullptr : &rows_[group.first_live];
}

internal::Row* StreamIndex::first_of(const Group& group) {
  return const_cast<Row*>(std::as_const(*this).first_of(group));
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

Status StreamIndex::put(std::span<const RowWrite> rows) {
  constexpr std::size_t kTogether = 64;  // rows whose records fit in a small cache
  while (!rows.empty()) {
    const std::span<const RowWrite> next = rows.first(std::min(kTogether, rows.size()));
    for (const RowWrite& write : next) {
      rows_.prefetch(write.row.id.value);
      for (const Task& task : tasks_) {
        task.pending.prefetch(write.row.id.value);
      }
    }
    for (const RowWrite& write : next) {
      TIDEMILL_RETURN_IF_ERROR(put(write.row, write.columns, write.facts));
    }
    rows = rows.subspan(next.size());
  }
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
  if (named.group_size > 0 && (!row.in_group() || named.group != row.info.group)) {
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
  if (options_.max_group_size == 0) {
    return refuse(Refusal::kNoGroups, sample_of_group(row));
  }
  if (row.group_size > options_.max_group_size) {
    return refuse(Refusal::kBadGroup, sample_of_group(row) + ": size " +
                                          std::to_string(row.group_size) + ", at most " +
                                          std::to_string(options_.max_group_size));
  }
  if (const Group* group = groups_.find(row.group.value); group != nullptr) {
    return check_group_index(*group, row);
  }
  if (row.group.value < next_group_ || row.group.value == kNoStep) {
    return refuse(Refusal::kGroupRetired, Errc::kNotFound,
                  sample_of_group(row) + ": has left; new groups have ids from " +
                      std::to_string(next_group_));
  }
  if (row.index_in_group >= row.group_size) {
    return refuse(Refusal::kBadGroup, sample_of_group(row) + ": index " +
                                          std::to_string(row.index_in_group) + " in a group of " +
                                          std::to_string(row.group_size));
  }
  return check_byte_limit(row);
}

Status StreamIndex::check_group_index(const Group& group, const SampleRow& row) {
  if (group.all_admitted()) {
    return refuse(Refusal::kGroupFull,
                  sample_of_group(row) + ": already has all " + std::to_string(group.size));
  }
  if (row.group_size != group.size || row.index_in_group >= group.size ||
      admitted_.contains(group, row.index_in_group)) {
    return refuse(Refusal::kBadGroup,
                  sample_of_group(row) + ": index " + std::to_string(row.index_in_group) + " of " +
                      std::to_string(row.group_size) +
                      " is taken, or contradicts the group's size " + std::to_string(group.size));
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
  if (Group* known = groups_.find(row.group.value); known != nullptr) {
    return *known;
  }
  next_group_ = row.group.value + 1;
  Group& group = groups_.add(row.group.value);
  group.id = row.group;
  group.size = row.group_size;
  group.first = row.id;
  group_at_.insert(row.id.value, group.slot);
  bytes_reserved_ += reservation(0);
  held_.running += accept_bit_ == 0 ? 0 : group.size;
  return group;
}

void StreamIndex::link(Group& group, Row& row) {
  row.group = group.slot;
  row.previous_in_group = group.last_live;
  (group.last_live == kNoSlot ? group.first_live : rows_[group.last_live].next_in_group) = row.slot;
  group.last_live = row.slot;
  ++group.num_live;
}

void StreamIndex::unlink(Group& group, const Row& row) {
  (row.previous_in_group == kNoSlot ? group.first_live
                                    : rows_[row.previous_in_group].next_in_group) =
      row.next_in_group;
  (row.next_in_group == kNoSlot ? group.last_live : rows_[row.next_in_group].previous_in_group) =
      row.previous_in_group;
  --group.num_live;
}

internal::Row& StreamIndex::admit(const SampleRow& info) {
  Row& row = rows_.add(info.id.value);
  row.info = info;
  row.num_open = static_cast<std::uint32_t>(tasks_.size());
  if (info.group_size > 0) {
    Group& group = group_for(info);
    link(group, row);
    ++group.num_admitted;
    admitted_.add(group, info.index_in_group);
  } else {
    bytes_reserved_ += reservation(0);
    held_.running += accept_bit_ == 0 ? 0 : 1;
  }
  next_row_ = info.id.value + 1;
  ++totals_.admitted;
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    set_state(row, task, CellState::kPending);
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
  change_bytes(row, bytes, 0);
  const bool older = facts.oldest_step < row.facts.oldest_step;
  row.facts.oldest_step = std::min(row.facts.oldest_step, facts.oldest_step);
  if (facts.tokens != kNoTokens) {
    row.facts.tokens = facts.tokens;
  }
  if ((written & accept_bit_) != 0) {
    accept(row);
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    const CellState state = cell(row, task).state;
    const bool complete = (tasks_[task].inputs & ~row.columns) == 0;
    // A ready row that is written again may have become older.
    if ((state == CellState::kPending && complete) || (state == CellState::kReady && older)) {
      set_state(row, task, CellState::kReady);
    }
  }
}

std::uint64_t StreamIndex::reservation(std::uint64_t bytes) const noexcept {
  return options_.limit_bytes == 0 ? bytes : std::max(bytes, options_.group_bytes);
}

void StreamIndex::change_bytes(Row& row, std::uint64_t added, std::uint64_t removed) {
  row.bytes += added - removed;
  bytes_used_ += added - removed;
  std::uint64_t after = row.bytes;
  if (row.in_group()) {
    after = group_of(row).bytes += added - removed;
  }
  bytes_reserved_ += reservation(after) - reservation(after - added + removed);
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
  const CellState before = std::exchange(cell(row, task).state, state);
  count(row, task, before, state);
  if (tasks_[task].options.unit == DeliveryUnit::kRow) {
    sync_row(row, task, before);
  } else if (row.in_group()) {
    sync_group(group_of(row), task);
  }
}

void StreamIndex::count(const Row& row, std::uint32_t task, CellState before, CellState after) {
  const std::uint32_t was_ready = before == CellState::kReady ? 1 : 0;
  const std::uint32_t is_ready = after == CellState::kReady ? 1 : 0;
  tasks_[task].num_ready += is_ready;
  tasks_[task].num_ready -= was_ready;
  if (row.in_group()) {
    GroupCell& group = groups_.cells(group_of(row))[task];
    group.ready += is_ready - was_ready;
    group.taken += (is_taken(after) ? 1U : 0U) - (is_taken(before) ? 1U : 0U);
  }
}

// Moves a row of a task that takes rows from the set of its state before to that of its state now.
void StreamIndex::sync_row(const Row& row, std::uint32_t task, CellState before) {
  ++work_.units;
  Task& owner = tasks_[task];
  const CellState state = cell(row, task).state;
  if (before == CellState::kPending && state != CellState::kPending) {
    owner.pending.erase(row.info.id.value);
  } else if (before == CellState::kReady && state != CellState::kReady) {
    owner.ready.erase(row.unit());
  }
  if (state == CellState::kPending) {
    owner.pending.insert(row.info.id.value);
  } else if (state == CellState::kReady) {
    owner.ready.put(row.unit(), row.facts.oldest_step);
    ++owner.revision;
  }
}

void StreamIndex::sync_group(const Group& group, std::uint32_t task) {
  ++work_.units;
  Task& owner = tasks_[task];
  const GroupCell& counts = groups_.cells(group)[task];
  if (group.closed) {  // its rows are being removed one by one
    owner.ready.erase(group.unit());
    owner.pending.erase(group.first.value);
    ++owner.revision;
    return;
  }
  if (counts.ready > 0 && counts.ready == group.size - group.num_retired) {
    std::uint64_t oldest_step = kNoStep;
    for (const Row* row = first_of(group); row != nullptr; row = next_of(*row)) {
      ++work_.rows;
      oldest_step = std::min(oldest_step, row->facts.oldest_step);
    }
    owner.ready.put(group.unit(), oldest_step);
    owner.pending.erase(group.first.value);
    ++owner.revision;
    return;
  }
  owner.ready.erase(group.unit());
  if (counts.taken > 0) {
    owner.pending.erase(group.first.value);
  } else {
    owner.pending.insert(group.first.value);
  }
}

// Takes a row that leaves out of the counts and sets of a task, and ends its lease. The cell
// becomes pending, but is in no set.
void StreamIndex::leave_task(Row& row, std::uint32_t task) {
  if (const Slot lease = std::exchange(cell(row, task).lease, kNoSlot); lease != kNoSlot) {
    leases_.remove(lease);
  }
  Task& owner = tasks_[task];
  if (owner.options.unit == DeliveryUnit::kGroup) {
    set_state(row, task, CellState::kPending);
    return;
  }
  ++work_.units;
  ++owner.revision;
  const CellState before = std::exchange(cell(row, task).state, CellState::kPending);
  count(row, task, before, CellState::kPending);
  if (before == CellState::kPending) {
    owner.pending.erase(row.info.id.value);
  } else if (before == CellState::kReady) {
    owner.ready.erase(row.unit());
  }
}

}  // namespace tidemill::storage
