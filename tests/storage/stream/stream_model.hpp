// SPDX-License-Identifier: Apache-2.0
// The rules of a stream in the simplest possible form: every result is found by scanning all rows.
// Tests compare the index with it. The two share nothing but the declarations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {

/// A stream that keeps every row forever and scans all of them for every result.
class StreamModel {
public:
  struct ModelCell {
    CellState state = CellState::kPending;
    std::uint32_t deliveries = 0;
    std::uint32_t failures = 0;
    std::string consumer;
    std::int64_t deadline = 0;
    std::uint64_t generation = 0;
  };
  struct ModelRow {
    SampleRow info;
    bool live = true;
    RowOutcome outcome = RowOutcome::kTrained;
    std::map<std::uint32_t, std::uint64_t> columns;  // their bytes
    std::uint64_t oldest = kNoStep;
    std::uint64_t tokens = 0;
    bool finished = false;  // its slot counts as accepted
    std::vector<ModelCell> cells;
  };
  struct ModelGroup {
    std::uint64_t first = 0;
    std::uint32_t size = 1;
    bool solo = false;
    bool left = false;
    bool closing = false;
    std::vector<std::uint64_t> rows;  // all that were ever admitted
  };
  using Key = std::pair<bool, std::uint64_t>;  // solo, group id or row id
  using Share = std::vector<std::pair<Lease, std::uint32_t>>;

  explicit StreamModel(StreamOptions options) : options_(std::move(options)) {
    totals.resize(options_.tasks.size());
  }

  // -- what the test compares ----------------------------------------------------

  std::map<std::uint64_t, ModelRow> rows;
  std::map<Key, ModelGroup> groups;
  std::vector<TaskTotals> totals;
  std::uint64_t version = 0;
  std::uint64_t generation = 0;
  std::int64_t now = 0;
  SlotChanges slots;
  std::set<std::pair<std::uint64_t, RowOutcome>> retired;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> returned;

  bool counts_slots() const { return !options_.accept_column.empty(); }

  std::uint64_t count(RowOutcome outcome) const {
    std::uint64_t n = 0;
    for (const auto& [id, row] : rows) {
      n += !row.live && row.outcome == outcome ? 1 : 0;
    }
    return n;
  }

  std::uint64_t bytes_of(const ModelGroup& group) const {
    std::uint64_t bytes = 0;
    for (const std::uint64_t id : group.rows) {
      for (const auto& [column, size] : rows.at(id).columns) {
        bytes += rows.at(id).live ? size : 0;
      }
    }
    return bytes;
  }

  std::pair<std::uint64_t, std::uint64_t> used_and_reserved() const {
    std::uint64_t used = 0;
    std::uint64_t reserved = 0;
    for (const auto& [key, group] : groups) {
      if (!group.left) {
        used += bytes_of(group);
        reserved += options_.limit_bytes == 0 ? bytes_of(group)
                                              : std::max(bytes_of(group), options_.group_bytes);
      }
    }
    return {used, reserved};
  }

  HeldSlots held() const {
    HeldSlots held;
    for (const auto& [key, group] : groups) {
      if (!group.left && counts_slots()) {
        held.accepted += finished(group);
        held.running += group.size - finished(group);
      }
    }
    return held;
  }

  std::size_t num_leased(std::uint32_t task) const {
    std::size_t n = 0;
    for (const auto& [id, row] : rows) {
      n += row.live && row.cells[task].state == CellState::kLeased ? 1 : 0;
    }
    return n;
  }

  std::vector<SampleId> ready_rows(std::uint32_t task) const {
    std::vector<SampleId> ready;
    for (const auto& [id, row] : rows) {
      if (row.live && row.cells[task].state == CellState::kReady) {
        ready.push_back({id});
      }
    }
    return ready;
  }

  /// The fresh units that the task's order allows, in admission order.
  std::vector<std::vector<SampleId>> deliverable(std::uint32_t task) const {
    std::vector<std::vector<SampleId>> fresh;
    for (const Candidate& unit : candidates(task)) {
      if (unit.ready && unit.fresh) {
        fresh.push_back(unit.rows);
      } else if (options_.tasks[task].order == DeliveryOrder::kStrict) {
        break;
      }
    }
    return fresh;
  }

  // -- operations: each returns the reason of its refusal, or nothing --------------

  std::string put(const SampleRow& row, const std::vector<CellInfo>& cells, const RowFacts& facts) {
    std::set<std::uint32_t> named;
    for (const CellInfo& cell : cells) {
      if (cell.column.value >= options_.columns.size()) {
        return "unknown_column";
      }
    }
    for (const CellInfo& cell : cells) {
      if (!named.insert(cell.column.value).second) {
        return "duplicate_column";
      }
    }
    const auto known = rows.find(row.id.value);
    if (known != rows.end() && known->second.live) {
      const SampleRow& info = known->second.info;
      if (row.group_size > 0 && (info.group_size == 0 || info.group != row.group)) {
        return "group_mismatch";
      }
      for (const std::uint32_t column : named) {
        if (known->second.columns.contains(column)) {
          return "duplicate_column";
        }
      }
      write(known->second, cells, facts);
      return "";
    }
    if (const std::string reason = admit(row); !reason.empty()) {
      return reason;
    }
    write(rows.at(row.id.value), cells, facts);
    return "";
  }

  std::string lease(std::uint32_t task, const std::string& consumer, std::uint32_t n,
                    std::uint32_t at_least, std::vector<Share>& shares) {
    const TaskOptions& options = options_.tasks[task];
    if (n == 0 || at_least > n || (options.ranks > 0 && n % options.ranks != 0)) {
      return "bad_count";
    }
    apply_stale_policy(task);
    shares.assign(std::max(1U, options.ranks), {});
    std::vector<std::vector<SampleId>> units = deliverable(task);
    if (units.size() > n) {
      units.resize(n);
    }
    if (units.empty() || units.size() < (options.ranks > 0 ? n : at_least)) {
      return "";
    }
    ++generation;
    const std::vector<std::uint32_t> rank_of = distribute(units, options.ranks);
    for (std::size_t i = 0; i < units.size(); ++i) {
      for (const SampleId id : units[i]) {
        ModelCell& cell = rows.at(id.value).cells[task];
        cell.state = CellState::kLeased;
        cell.consumer = consumer;
        cell.deadline =
            now + std::chrono::duration_cast<std::chrono::seconds>(options.lease).count();
        cell.generation = generation;
        ++totals[task].delivered;
        shares[rank_of[i]].push_back({{id, 0, generation}, cell.deliveries});
      }
    }
    return "";
  }

  enum class Act { kComplete, kNack, kLose, kLeave, kRenew };

  std::string settle(std::uint32_t task, const std::string& consumer, Act act,
                     const std::vector<HeldRowInfo>& asked, Settlement& settlement) {
    std::set<std::uint64_t> ids;
    for (const HeldRowInfo& row : asked) {
      if (!ids.insert(row.lease.row.value).second) {
        return "duplicate_row";
      }
    }
    const bool by_group = options_.tasks[task].unit == DeliveryUnit::kGroup;
    for (const HeldRowInfo& row : asked) {
      const ModelRow* live = find(row.lease.row.value);
      if (by_group && live != nullptr && live->info.group_size > 0) {
        for (const std::uint64_t other : groups.at(key_of(live->info)).rows) {
          if (rows.at(other).live && !ids.contains(other)) {
            return "partial_group";
          }
        }
      }
    }
    std::vector<std::optional<Refusal>> reasons;
    std::set<Key> refused_groups;
    for (const HeldRowInfo& row : asked) {
      reasons.push_back(why_not(task, consumer, act, row));
      const ModelRow* live = find(row.lease.row.value);
      if (reasons.back() && live != nullptr && by_group) {
        refused_groups.insert(key_of(live->info));
      }
    }
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const std::uint64_t id = asked[i].lease.row.value;
      if (!reasons[i] && by_group && refused_groups.contains(key_of(rows.at(id).info))) {
        reasons[i] = Refusal::kGroupRefused;
      }
      if (reasons[i]) {
        settlement.refused.push_back({asked[i].lease, *reasons[i]});
      } else {
        settlement.done.push_back({id});
      }
    }
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (!reasons[i]) {
        apply(task, act, asked[i]);
      }
    }
    // Rows with invalid cells have failed. The other rows of their groups come back too.
    std::set<Key> faulty;
    for (const bool failed : {true, false}) {
      for (std::size_t i = 0; i < asked.size(); ++i) {
        const std::uint64_t id = asked[i].lease.row.value;
        const ModelRow* row = find(id);
        const bool leased = row != nullptr && row->cells[task].state == CellState::kLeased;
        if (!leased || !reasons[i]) {
          continue;
        }
        if (failed && is_content_refusal(*reasons[i])) {
          faulty.insert(key_of(row->info));
          come_back(task, id, /*failed=*/true);
        } else if (!failed && reasons[i] == Refusal::kGroupRefused &&
                   faulty.contains(key_of(row->info))) {
          come_back(task, id, /*failed=*/false);
        }
      }
    }
    return "";
  }

  void move_clock(std::int64_t seconds) {
    now = seconds;
    give_back([&](const ModelCell& cell) { return cell.deadline <= now; });
  }

  void drop_consumer(const std::string& consumer) {
    give_back([&](const ModelCell& cell) { return cell.consumer == consumer; });
  }

  std::string apply_verdict(std::uint64_t id, VerdictKind kind) {
    ModelRow* row = find(id);
    if (row == nullptr) {
      return "unknown_row";
    }
    if (kind == VerdictKind::kFail) {
      fail(id);
    } else {
      leave({id}, kind == VerdictKind::kDrop ? RowOutcome::kDropped : RowOutcome::kFiltered);
    }
    return "";
  }

  std::string apply_group_verdict(std::uint64_t id, VerdictKind kind) {
    const auto group = groups.find({false, id});
    if (group == groups.end() || group->second.left) {
      return "unknown_row";
    }
    close(group->second, kind == VerdictKind::kFail     ? RowOutcome::kFailed
                         : kind == VerdictKind::kFilter ? RowOutcome::kFiltered
                                                        : RowOutcome::kDropped);
    return "";
  }

  /// Restores `then`: its leased rows become ready, and generations never repeat.
  void restore(const StreamModel& then) {
    const std::uint64_t latest = std::max(generation, then.generation);
    const std::int64_t time = now;
    *this = then;
    generation = latest;
    now = time;
    for (auto& [id, row] : rows) {
      for (ModelCell& cell : row.cells) {
        if (row.live && cell.state == CellState::kLeased) {
          cell.state = CellState::kReady;
        }
      }
    }
    slots = {};
    retired.clear();
    returned.clear();
  }

private:
  struct Candidate {
    std::vector<SampleId> rows;
    bool ready = false;
    bool fresh = false;
  };

  static Key key_of(const SampleRow& row) {
    return row.group_size == 0 ? Key{true, row.id.value} : Key{false, row.group.value};
  }

  ModelRow* find(std::uint64_t id) {
    const auto row = rows.find(id);
    return row == rows.end() || !row->second.live ? nullptr : &row->second;
  }

  std::int64_t finished(const ModelGroup& group) const {
    std::int64_t n = 0;
    for (const std::uint64_t id : group.rows) {
      n += rows.at(id).finished ? 1 : 0;
    }
    return n;
  }

  bool all_came_and_left(const ModelGroup& group) const {
    return group.rows.size() == group.size &&
           std::none_of(group.rows.begin(), group.rows.end(),
                        [&](std::uint64_t id) { return rows.at(id).live; });
  }

  std::string admit(const SampleRow& row) {
    if (!rows.empty() && row.id.value <= rows.rbegin()->first) {
      return "row_retired";
    }
    const Key key = key_of(row);
    const auto known = groups.find(key);
    if (row.group_size > 0) {
      if (options_.max_group_size == 0) {
        return "no_groups";
      }
      if (row.group_size > options_.max_group_size) {
        return "bad_group";
      }
      if (known != groups.end() && !known->second.left) {
        return join(known->second, row);
      }
      for (const auto& [other, group] : groups) {
        if (!other.first && other.second >= row.group.value) {
          return "group_retired";
        }
      }
      if (row.index_in_group >= row.group_size) {
        return "bad_group";
      }
    }
    if (options_.limit_bytes > 0 &&
        used_and_reserved().second + options_.group_bytes > options_.limit_bytes) {
      return "byte_limit";
    }
    groups[key] = {
        row.id.value, std::max(1U, row.group_size), row.group_size == 0, false, false, {}};
    return join(groups[key], row);
  }

  std::string join(ModelGroup& group, const SampleRow& row) {
    if (group.rows.size() == group.size) {
      return "group_full";
    }
    const bool taken = std::any_of(group.rows.begin(), group.rows.end(), [&](std::uint64_t id) {
      return rows.at(id).info.index_in_group == row.index_in_group;
    });
    if (!group.solo &&
        (row.group_size != group.size || row.index_in_group >= group.size || taken)) {
      return "bad_group";
    }
    group.rows.push_back(row.id.value);
    ModelRow& made = rows[row.id.value];
    made.info = row;
    made.cells.resize(options_.tasks.size());
    return "";
  }

  void write(ModelRow& row, const std::vector<CellInfo>& cells, const RowFacts& facts) {
    for (const CellInfo& cell : cells) {
      row.columns[cell.column.value] = cell.bytes;
      if (options_.columns[cell.column.value].name == options_.accept_column) {
        finish(row);
      }
    }
    row.oldest = std::min(row.oldest, facts.oldest_step);
    if (facts.tokens != kNoTokens) {
      row.tokens = facts.tokens;
    }
    for (std::size_t task = 0; task < row.cells.size(); ++task) {
      const auto& inputs = options_.tasks[task].inputs;
      const bool complete = std::all_of(inputs.begin(), inputs.end(), [&](const std::string& name) {
        return row.columns.contains(options_.find_column(name)->value);
      });
      if (row.cells[task].state == CellState::kPending && complete) {
        row.cells[task].state = CellState::kReady;
      }
    }
  }

  void finish(ModelRow& row) {
    if (counts_slots() && !row.finished) {
      row.finished = true;
      ++slots.accepted;
    }
  }

  bool is_fresh(std::uint32_t task, const std::vector<SampleId>& unit) const {
    const auto& limit = options_.tasks[task].max_staleness;
    return !limit || std::all_of(unit.begin(), unit.end(), [&](SampleId id) {
      const std::uint64_t oldest = rows.at(id.value).oldest;
      return oldest == kNoStep || oldest + *limit >= version;
    });
  }

  /// All units that the task has neither leased nor finished, ready or not, in admission order.
  std::vector<Candidate> candidates(std::uint32_t task) const {
    std::map<std::uint64_t, Candidate> by_position;
    for (const auto& [key, group] : groups) {
      if (options_.tasks[task].unit == DeliveryUnit::kGroup && !group.left && !group.solo) {
        Candidate unit;
        std::size_t num_retired = 0;
        bool taken = false;
        for (const std::uint64_t id : group.rows) {
          const ModelRow& row = rows.at(id);
          const CellState state = row.cells[task].state;
          num_retired += !row.live && row.outcome != RowOutcome::kTrained ? 1 : 0;
          if (row.live && state == CellState::kReady) {
            unit.rows.push_back({id});
          }
          taken = taken || (row.live && state != CellState::kReady && state != CellState::kPending);
        }
        unit.ready = !unit.rows.empty() && unit.rows.size() + num_retired == group.size;
        unit.fresh = is_fresh(task, unit.rows);
        if (!taken) {
          by_position[group.first] = unit;
        }
      }
    }
    for (const auto& [id, row] : rows) {
      if (options_.tasks[task].unit == DeliveryUnit::kRow && row.live) {
        const CellState state = row.cells[task].state;
        if (state == CellState::kReady || state == CellState::kPending) {
          by_position[id] = {{{id}}, state == CellState::kReady, is_fresh(task, {{id}})};
        }
      }
    }
    std::vector<Candidate> list;
    for (auto& [position, unit] : by_position) {
      list.push_back(std::move(unit));
    }
    return list;
  }

  void apply_stale_policy(std::uint32_t task) {
    const StalePolicy policy = options_.tasks[task].stale_policy;
    if (policy == StalePolicy::kWait) {
      return;
    }
    for (const Candidate& unit : candidates(task)) {
      if (!unit.ready || unit.fresh) {
        continue;
      }
      totals[task].stale += unit.rows.size();
      if (policy == StalePolicy::kDropForTask) {
        for (const SampleId id : unit.rows) {
          rows.at(id.value).cells[task].state = CellState::kStale;
          leave_if_done(id.value);
        }
      } else if (options_.tasks[task].unit == DeliveryUnit::kGroup) {
        close(groups.at(key_of(rows.at(unit.rows.front().value).info)), RowOutcome::kDropped);
      } else {
        leave({unit.rows.front().value}, RowOutcome::kDropped);
      }
    }
  }

  std::vector<std::uint32_t> distribute(const std::vector<std::vector<SampleId>>& units,
                                        std::uint32_t ranks) const {
    std::vector<std::uint32_t> rank_of(units.size(), 0);
    if (ranks == 0) {
      return rank_of;
    }
    std::vector<std::uint64_t> tokens(units.size());
    for (std::size_t i = 0; i < units.size(); ++i) {
      for (const SampleId id : units[i]) {
        tokens[i] += rows.at(id.value).tokens;
      }
    }
    std::vector<bool> assigned(units.size(), false);
    std::vector<std::uint64_t> sums(ranks);
    std::vector<std::size_t> held(ranks);
    for (std::size_t step = 0; step < units.size(); ++step) {
      std::size_t best = units.size();
      for (std::size_t i = 0; i < units.size(); ++i) {
        if (!assigned[i] && (best == units.size() || tokens[i] > tokens[best])) {
          best = i;
        }
      }
      std::uint32_t to = ranks;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        if (held[rank] < units.size() / ranks && (to == ranks || sums[rank] < sums[to])) {
          to = rank;
        }
      }
      assigned[best] = true;
      rank_of[best] = to;
      sums[to] += tokens[best];
      ++held[to];
    }
    return rank_of;
  }

  std::optional<Refusal> why_not(std::uint32_t task, const std::string& consumer, Act act,
                                 const HeldRowInfo& asked) {
    if (asked.lease.incarnation != 0) {
      return Refusal::kOtherIncarnation;
    }
    const ModelRow* row = find(asked.lease.row.value);
    if (row == nullptr) {
      return Refusal::kUnknownRow;
    }
    const ModelCell& cell = row->cells[task];
    if (cell.state != CellState::kLeased) {
      return Refusal::kNotLeased;
    }
    if (cell.generation != asked.lease.generation) {
      return Refusal::kOldLease;
    }
    if (cell.consumer != consumer) {
      return Refusal::kOtherConsumer;
    }
    if (act != Act::kComplete && asked.columns.empty()) {
      return std::nullopt;
    }
    if (act == Act::kNack || act == Act::kLose) {
      return Refusal::kBadColumn;  // only a row that is left or renewed may have progress
    }
    std::set<std::string> written;
    for (const CellInfo& column : asked.columns) {
      if (!written.insert(options_.columns[column.column.value].name).second) {
        return Refusal::kDuplicateColumn;
      }
    }
    const TaskOptions& options = options_.tasks[task];
    if (act != Act::kComplete) {
      const bool all =
          written == std::set<std::string>(options.progress.begin(), options.progress.end());
      return all ? std::nullopt : std::optional(Refusal::kBadColumn);
    }
    for (const std::string& optional : options.optional_outputs) {
      if (!row->columns.contains(options_.find_column(optional)->value)) {
        written.erase(optional);
      }
    }
    const bool again =
        std::any_of(options.optional_outputs.begin(), options.optional_outputs.end(),
                    [&](const std::string& optional) { return written.erase(optional) > 0; });
    if (written != std::set<std::string>(options.outputs.begin(), options.outputs.end())) {
      return Refusal::kBadColumn;
    }
    if (again) {
      return Refusal::kDuplicateColumn;
    }
    for (const CellInfo& column : asked.columns) {
      if (row->columns.contains(column.column.value)) {
        return Refusal::kDuplicateColumn;
      }
    }
    return std::nullopt;
  }

  void apply(std::uint32_t task, Act act, const HeldRowInfo& asked) {
    const std::uint64_t id = asked.lease.row.value;
    ModelRow* row = find(id);
    if (row == nullptr) {
      return;  // it left because of another row of the call
    }
    ModelCell& cell = row->cells[task];
    if (act == Act::kComplete || !asked.columns.empty()) {
      for (const std::string& column : options_.tasks[task].progress) {
        row->columns.erase(options_.find_column(column)->value);
      }
    }
    if (act == Act::kRenew || act == Act::kLeave) {
      for (const CellInfo& column : asked.columns) {
        row->columns[column.column.value] = column.bytes;
      }
    }
    if (act == Act::kRenew) {
      const Duration lease = options_.tasks[task].lease;
      cell.deadline = now + std::chrono::duration_cast<std::chrono::seconds>(lease).count();
    } else if (act != Act::kComplete) {
      come_back(task, id, act == Act::kNack);
    } else {
      write(*row, asked.columns, asked.facts);
      cell.state = CellState::kAcked;
      ++totals[task].acked;
      leave_if_done(id);
    }
  }

  template <class Predicate>
  void give_back(const Predicate& due) {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> list;
    for (std::uint32_t task = 0; task < options_.tasks.size(); ++task) {
      for (const auto& [id, row] : rows) {
        const ModelCell& cell = row.cells[task];
        if (row.live && cell.state == CellState::kLeased && due(cell)) {
          list.emplace_back(task, id);
        }
      }
    }
    for (const auto& [task, id] : list) {
      if (rows.at(id).live) {
        returned.emplace_back(task, id);
        come_back(task, id, /*failed=*/false);
      }
    }
  }

  void come_back(std::uint32_t task, std::uint64_t id, bool failed) {
    ModelCell& cell = rows.at(id).cells[task];
    cell.state = CellState::kReady;
    ++cell.deliveries;
    ++totals[task].redelivered;
    cell.failures += failed ? 1 : 0;
    if (options_.max_deliveries > 0 && cell.failures >= options_.max_deliveries) {
      fail(id);
    }
  }

  void fail(std::uint64_t id) {
    const Key key = key_of(rows.at(id).info);
    if (key.first || options_.on_failed == OnFailedRow::kShrink) {
      leave({id}, RowOutcome::kFailed);
      return;
    }
    std::vector<std::pair<std::uint64_t, RowOutcome>> retiring{{id, RowOutcome::kFailed}};
    for (const std::uint64_t other : groups.at(key).rows) {
      if (rows.at(other).live && other != id) {
        retiring.emplace_back(other, RowOutcome::kDropped);
      }
    }
    for (const auto& [row, outcome] : retiring) {
      mark(row, outcome);
    }
    end_group(groups.at(key), RowOutcome::kDropped);
  }

  void leave_if_done(std::uint64_t id) {
    const ModelRow& row = rows.at(id);
    bool stale = false;
    for (const ModelCell& cell : row.cells) {
      if (cell.state != CellState::kAcked && cell.state != CellState::kStale) {
        return;
      }
      stale = stale || cell.state == CellState::kStale;
    }
    leave({id}, stale ? RowOutcome::kDropped : RowOutcome::kTrained);
  }

  void mark(std::uint64_t id, RowOutcome outcome) {
    rows.at(id).live = false;
    rows.at(id).outcome = outcome;
    retired.emplace(id, outcome);
  }

  /// Removes one row. Its group continues if it can.
  void leave(SampleId id, RowOutcome outcome) {
    ModelGroup& group = groups.at(key_of(rows.at(id.value).info));
    mark(id.value, outcome);
    if (outcome == RowOutcome::kTrained || !all_came_and_left(group)) {
      finish(rows.at(id.value));
    }
    if (all_came_and_left(group)) {
      end_group(group, outcome);
    }
  }

  void close(ModelGroup& group, RowOutcome outcome) {
    for (const std::uint64_t id : group.rows) {
      if (rows.at(id).live) {
        mark(id, outcome);
      }
    }
    end_group(group, outcome);
  }

  void end_group(ModelGroup& group, RowOutcome outcome) {
    group.left = true;
    if (!counts_slots()) {
      return;
    }
    const bool trained = std::any_of(group.rows.begin(), group.rows.end(), [&](std::uint64_t id) {
      return rows.at(id).outcome == RowOutcome::kTrained;
    });
    const std::int64_t unfinished = group.size - finished(group);
    if (trained) {
      slots.accepted += unfinished;
      return;
    }
    slots.forfeited += finished(group);
    (outcome == RowOutcome::kFiltered ? slots.rejected : slots.aborted) += unfinished;
  }

  StreamOptions options_;
};

}  // namespace tidemill::storage
