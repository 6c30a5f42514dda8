// SPDX-License-Identifier: Apache-2.0
// A stream index as a value: taking a snapshot, and restoring it.
#include <algorithm>
#include <bit>
#include <utility>

#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {
namespace {

constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 46U;  // all columns at their maximum

template <class Options>
std::vector<std::string> names_of(const std::vector<Options>& declared) {
  std::vector<std::string> names;
  names.reserve(declared.size());
  for (const Options& one : declared) {
    names.push_back(one.name);
  }
  return names;
}

Status corrupt(const std::string& what) {
  return corrupt_data("stream snapshot: " + what);
}

}  // namespace

// -- taking -------------------------------------------------------------------

IndexSnapshot StreamIndex::snapshot() const {
  IndexSnapshot stored;
  stored.columns = names_of(options_.columns);
  stored.tasks = names_of(options_.tasks);
  stored.version = version_;
  stored.next_row = next_row_;
  stored.next_group = next_group_;
  stored.generation = generation_;
  stored.totals = totals_;
  for (const Task& task : tasks_) {
    stored.task_totals.push_back(task.totals);
  }
  for (const auto [id, slot] : groups_.by_id()) {
    const Group& group = groups_[slot];
    GroupSnapshot& one = stored.groups.emplace_back();
    one = {group.id, group.size, group.first, group.num_retired, group.trained, group.accepted, {}};
    for (std::uint32_t index = 0; index < group.size; ++index) {
      one.admitted.push_back(admitted_.contains(group, index) ? 1 : 0);
    }
  }
  std::sort(stored.groups.begin(), stored.groups.end(),
            [](const GroupSnapshot& a, const GroupSnapshot& b) { return a.first < b.first; });
  for (const auto [id, slot] : rows_.by_id()) {
    stored.rows.push_back(store_row(rows_[slot]));
  }
  return stored;
}

RowSnapshot StreamIndex::store_row(const Row& row) const {
  RowSnapshot stored;
  stored.row = row.info;
  stored.columns = row.columns;
  stored.bytes = row.bytes;
  stored.facts = row.facts;
  stored.accepted = row.accepted ? 1 : 0;
  for (const Cell& cell : rows_.cells(row)) {
    const bool leased = cell.state == CellState::kLeased;
    stored.cells.push_back(
        {leased ? CellState::kReady : cell.state, cell.deliveries, cell.failures});
  }
  return stored;
}

// -- restoring ----------------------------------------------------------------

Status StreamIndex::restore(const IndexSnapshot& snapshot) {
  const std::vector<std::string> columns = names_of(options_.columns);
  const bool earlier_columns =
      snapshot.columns.size() <= columns.size() &&
      std::equal(snapshot.columns.begin(), snapshot.columns.end(), columns.begin());
  if (!earlier_columns || snapshot.tasks != names_of(options_.tasks)) {
    return refuse(Refusal::kForeignSnapshot, "the snapshot has other columns or tasks");
  }
  StreamIndex fresh(options_);
  TIDEMILL_RETURN_IF_ERROR(fresh.load(snapshot));
  if (const Status sound = fresh.check_invariants(); !sound.ok()) {
    return corrupt(sound.message());
  }
  // Tokens of the undone history must never match a lease of the restored index.
  fresh.generation_ = std::max(generation_, snapshot.generation);
  fresh.now_ = now_;
  fresh.refused_ = refused_;
  fresh.work_ = work_;
  for (std::size_t task = 0; task < tasks_.size(); ++task) {
    fresh.tasks_[task].revision += tasks_[task].revision + 1;
    fresh.tasks_[task].returned = tasks_[task].returned;
  }
  *this = std::move(fresh);
  return {};
}

Status StreamIndex::load(const IndexSnapshot& snapshot) {
  if (snapshot.task_totals.size() != tasks_.size()) {
    return corrupt("totals of " + std::to_string(snapshot.task_totals.size()) + " tasks");
  }
  for (std::size_t task = 0; task < tasks_.size(); ++task) {
    tasks_[task].totals = snapshot.task_totals[task];
  }
  restore_version(snapshot.version);
  next_row_ = snapshot.next_row;
  next_group_ = snapshot.next_group;
  totals_ = snapshot.totals;
  for (const GroupSnapshot& group : snapshot.groups) {
    TIDEMILL_RETURN_IF_ERROR(load_group(group));
  }
  for (std::size_t i = 0; i < snapshot.rows.size(); ++i) {
    const SampleId id = snapshot.rows[i].row.id;
    if (id.value >= next_row_ || (i > 0 && id <= snapshot.rows[i - 1].row.id)) {
      return corrupt("sample " + std::to_string(id.value) + " is out of order");
    }
    TIDEMILL_RETURN_IF_ERROR(load_row(snapshot.rows[i]));
  }
  for (const auto [id, slot] : groups_.by_id()) {
    for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
      if (tasks_[task].options.unit == DeliveryUnit::kGroup) {
        sync_group(groups_[slot],
                   task);  // a group without live rows still has a position in the order
      }
    }
  }
  return {};
}

Status StreamIndex::load_group(const GroupSnapshot& stored) {
  const std::string where = "group " + std::to_string(stored.id.value);
  const auto is_flag = [](std::uint8_t flag) { return flag <= 1; };
  if (stored.id.value >= next_group_ || stored.first.value >= next_row_ ||
      groups_.find(stored.id.value) != nullptr || group_at_.contains(stored.first.value)) {
    return corrupt(where + " is out of order or occurs twice");
  }
  if (stored.size == 0 || stored.size > options_.max_group_size ||
      stored.admitted.size() != stored.size ||
      !std::all_of(stored.admitted.begin(), stored.admitted.end(), is_flag) ||
      stored.num_retired > stored.size || stored.trained > stored.size ||
      stored.accepted > stored.size) {
    return corrupt(where + ": counts contradict its size " + std::to_string(stored.size));
  }
  Group& group = groups_.add(stored.id.value);
  group.id = stored.id;
  group.size = stored.size;
  group.first = stored.first;
  group_at_.insert(stored.first.value, group.slot);
  group.num_retired = stored.num_retired;
  group.trained = stored.trained;
  group.accepted = stored.accepted;
  for (std::uint32_t index = 0; index < stored.size; ++index) {
    if (stored.admitted[index] == 1) {
      admitted_.add(group, index);
      ++group.num_admitted;
    }
  }
  bytes_reserved_ += reservation(0);
  if (accept_bit_ != 0) {
    held_.running += std::int64_t{group.size} - group.accepted;
    held_.accepted += group.accepted;
  }
  return {};
}

Status StreamIndex::load_row(const RowSnapshot& stored) {
  const std::string where = "sample " + std::to_string(stored.row.id.value);
  Group* group = groups_.find(stored.row.group.value);
  if (stored.row.group_size > 0 && group == nullptr) {
    return corrupt(where + ": its group is missing");
  }
  if (stored.cells.size() != tasks_.size() || stored.bytes > kMaxRowBytes || stored.accepted > 1) {
    return corrupt(where + ": cells, bytes or flags are out of range");
  }
  Row& row = rows_.add(stored.row.id.value);
  row.info = stored.row;
  row.columns = stored.columns;
  row.facts = stored.facts;
  row.accepted = stored.accepted == 1;
  if (stored.row.group_size > 0) {
    link(*group, row);  // its slots were counted with its group
  } else {
    bytes_reserved_ += reservation(0);
    if (accept_bit_ != 0) {
      ++(row.accepted ? held_.accepted : held_.running);
    }
  }
  change_bytes(row, stored.bytes, 0);
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    const CellSnapshot& saved = stored.cells[task];
    if (saved.state != CellState::kPending && saved.state != CellState::kReady &&
        saved.state != CellState::kAcked && saved.state != CellState::kStale) {
      return corrupt(where + ": task " + options_.tasks[task].name + " has no such state");
    }
    cell(row, task).deliveries = saved.deliveries;
    cell(row, task).failures = saved.failures;
    row.any_stale = row.any_stale || saved.state == CellState::kStale;
    row.num_open += saved.state == CellState::kPending || saved.state == CellState::kReady ? 1 : 0;
    set_state(row, task, saved.state);
  }
  return {};
}

}  // namespace tidemill::storage
