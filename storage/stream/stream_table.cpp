// SPDX-License-Identifier: Apache-2.0
// The control plane and the data plane together.
#include "storage/stream/stream_table.hpp"

#include <utility>

namespace tidemill::storage {
namespace {

std::vector<ColumnId> ids_of(const StreamOptions& options, const std::vector<std::string>& names) {
  std::vector<ColumnId> ids;
  ids.reserve(names.size());
  for (const std::string& name : names) {
    ids.push_back(*options.find_column(name));
  }
  return ids;
}

// Calls `apply` with each row of a call that is done, in the order of the call.
template <class Apply>
void for_each_done(std::span<const HeldRow> rows, const Settlement& settlement, Apply apply) {
  std::size_t next = 0;
  for (const SampleId done : settlement.done) {
    while (rows[next].lease.row != done) {
      ++next;
    }
    apply(rows[next]);
  }
}

}  // namespace

StreamTable::StreamTable(std::unique_ptr<StreamIndex> index)
    : index_(std::move(index)), checker_(index_->options()) {
  for (const TaskOptions& task : options().tasks) {
    inputs_.push_back(ids_of(options(), task.inputs));
    optional_.push_back(ids_of(options(), task.optional_inputs));
    progress_.push_back(ids_of(options(), task.progress));
    optional_.back().insert(optional_.back().end(), progress_.back().begin(),
                            progress_.back().end());
  }
}

Result<std::unique_ptr<StreamTable>> StreamTable::create(StreamOptions options) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<StreamIndex> index,
                            StreamIndex::create(std::move(options)));
  return std::unique_ptr<StreamTable>(new StreamTable(std::move(index)));
}

Status StreamTable::put(const SampleRow& row, std::span<const ColumnValue> columns,
                        const RowFacts& facts) {
  TIDEMILL_RETURN_IF_ERROR(index_->put(row, describe(row.id, columns), facts));
  columns_.put(row.id, columns);
  return {};
}

Result<LeasedBatch> StreamTable::lease(const LeaseOptions& request, TimePoint now) {
  const Result<Grant> granted = index_->lease(request, now);
  collect();
  TIDEMILL_RETURN_IF_ERROR(granted.status());
  LeasedBatch batch;
  batch.deadline = granted.value().deadline;
  for (const GrantedShare& share : granted.value().shares) {
    LeasedShare& leased = batch.shares.emplace_back();
    leased.tokens = share.tokens;
    for (const GrantedRow& row : share.rows) {
      const SampleId id = row.lease.row;
      Result<std::vector<ColumnValue>> columns = columns_.read(id, inputs_[request.task.value]);
      TIDEMILL_CHECK(columns.ok()) << columns.status().to_string();  // a ready row has its inputs
      for (const ColumnId column : optional_[request.task.value]) {
        if (const Buffer* cell = columns_.find(id, column); cell != nullptr) {
          columns.value().push_back({column, *cell});
        }
      }
      leased.rows.push_back({*index_->find(id), row.lease, row.deliveries, index_->facts(id),
                             std::move(columns).value()});
    }
  }
  return batch;
}

std::vector<CellInfo> StreamTable::describe(SampleId row,
                                            std::span<const ColumnValue> cells) const {
  std::vector<CellInfo> infos;
  infos.reserve(cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Buffer& cell = cells[i].value;
    infos.push_back({cells[i].column, cell.size_bytes(), cell.identity().dtype,
                     checker_.fault_of(row, cells, i, columns_)});
  }
  return infos;
}

std::vector<HeldRowInfo> StreamTable::describe(TaskId task, std::span<const HeldRow> rows) const {
  std::vector<HeldRowInfo> infos;
  infos.reserve(rows.size());
  for (const HeldRow& row : rows) {
    const SampleId id = row.lease.row;
    HeldRowInfo& info = infos.emplace_back();
    info = {row.lease, describe(id, row.columns), row.facts};
    if (task.value < progress_.size()) {
      for (const ColumnId column : progress_[task.value]) {
        const Buffer* cell = columns_.find(id, column);
        info.progress_bytes += cell == nullptr ? 0 : cell->size_bytes();
      }
    }
  }
  return infos;
}

Result<Settlement> StreamTable::complete(const LeaseHolder& holder, std::span<const HeldRow> rows,
                                         TimePoint now) {
  Result<Settlement> settled = index_->complete(holder, describe(holder.task, rows), now);
  if (settled.ok()) {
    for_each_done(rows, settled.value(), [&](const HeldRow& row) {
      const SampleId id = row.lease.row;
      if (index_->find(id) != nullptr) {  // null: this was the last ack, and the row has left
        columns_.erase(id, progress_[holder.task.value]);
        columns_.put(id, row.columns);
      }
    });
  }
  collect();
  return settled;
}

Result<Settlement> StreamTable::nack(const LeaseHolder& holder, std::span<const HeldRow> rows,
                                     const ReleaseOptions& options, TimePoint now) {
  Result<Settlement> settled = index_->nack(holder, describe(holder.task, rows), options, now);
  if (settled.ok()) {
    store_progress(holder.task, rows, settled.value());
  }
  collect();
  return settled;
}

Result<Settlement> StreamTable::renew(const LeaseHolder& holder, std::span<const HeldRow> rows,
                                      TimePoint now) {
  Result<Settlement> settled = index_->renew(holder, describe(holder.task, rows), now);
  if (settled.ok()) {
    store_progress(holder.task, rows, settled.value());
  }
  collect();
  return settled;
}

void StreamTable::store_progress(TaskId task, std::span<const HeldRow> rows,
                                 const Settlement& settlement) {
  for_each_done(rows, settlement, [&](const HeldRow& row) {
    const SampleId id = row.lease.row;
    if (!row.columns.empty() && index_->find(id) != nullptr) {
      columns_.erase(id, progress_[task.value]);
      columns_.put(id, row.columns);
    }
  });
}

void StreamTable::drop_consumer(std::string_view consumer) {
  index_->drop_consumer(consumer);
  collect();
}

Status StreamTable::expire(TimePoint now) {
  Status status = index_->expire(now);
  collect();
  return status;
}

Status StreamTable::apply_verdict(SampleId row, const Verdict& verdict) {
  Status status = index_->apply_verdict(row, verdict);
  collect();
  return status;
}

Status StreamTable::apply_group_verdict(GroupId group, const Verdict& verdict) {
  Status status = index_->apply_group_verdict(group, verdict);
  collect();
  return status;
}

void StreamTable::collect() {
  StreamEffects effects = index_->take_effects();
  for (RetiredRow& row : effects.retired) {
    columns_.erase(row.id);
    effects_.retired.push_back(std::move(row));
  }
  effects_.returned.insert(effects_.returned.end(), effects.returned.begin(),
                           effects.returned.end());
  effects_.slots.accepted += effects.slots.accepted;
  effects_.slots.aborted += effects.slots.aborted;
  effects_.slots.rejected += effects.slots.rejected;
  effects_.slots.forfeited += effects.slots.forfeited;
}

StreamEffects StreamTable::take_effects() {
  collect();
  return std::exchange(effects_, {});
}

StreamSnapshot StreamTable::snapshot() const {
  StreamSnapshot stored;
  stored.index = index_->snapshot();
  for (const RowSnapshot& row : stored.index.rows) {
    stored.rows.push_back({row.row.id, columns_.read_all(row.row.id)});
  }
  return stored;
}

Status StreamTable::check_cells(const RowSnapshot& row, const RowColumns& cells) const {
  std::uint64_t columns = 0;
  std::uint64_t bytes = 0;
  bool twice = false;
  for (const ColumnValue& cell : cells.columns) {
    const std::uint32_t column = cell.column.value;
    if (column >= options().columns.size() || !cell.value.resolved() ||
        !cell_fits(options().columns[column].type, cell.value.identity().dtype,
                   cell.value.size_bytes())) {
      return corrupt_data("stream snapshot: sample " + std::to_string(row.row.id.value) +
                          " has a cell that fits no column");
    }
    const std::uint64_t bit = std::uint64_t{1} << column;
    twice = twice || (columns & bit) != 0;
    columns |= bit;
    bytes += cell.value.size_bytes();
  }
  if (twice || cells.row != row.row.id || columns != row.columns || bytes != row.bytes) {
    return corrupt_data("stream snapshot: the cells of sample " + std::to_string(row.row.id.value) +
                        " do not match its index");
  }
  return {};
}

Status StreamTable::restore(const StreamSnapshot& snapshot) {
  if (snapshot.rows.size() != snapshot.index.rows.size()) {
    return corrupt_data("stream snapshot: " + std::to_string(snapshot.index.rows.size()) +
                        " rows, but cells of " + std::to_string(snapshot.rows.size()));
  }
  for (std::size_t i = 0; i < snapshot.rows.size(); ++i) {
    TIDEMILL_RETURN_IF_ERROR(check_cells(snapshot.index.rows[i], snapshot.rows[i]));
  }
  TIDEMILL_RETURN_IF_ERROR(index_->restore(snapshot.index));
  columns_.clear();
  for (const RowColumns& cells : snapshot.rows) {
    columns_.put(cells.row, cells.columns);
  }
  effects_ = {};
  return {};
}

Status StreamTable::check_invariants() const {
  TIDEMILL_RETURN_IF_ERROR(index_->check_invariants());
  if (columns_.num_rows() != index_->num_live() || columns_.bytes() != index_->bytes_used()) {
    return {Errc::kInternal, "stream: cells of " + std::to_string(columns_.num_rows()) +
                                 " rows with " + std::to_string(columns_.bytes()) +
                                 " bytes, but the index has " + std::to_string(index_->num_live()) +
                                 " and " + std::to_string(index_->bytes_used())};
  }
  return {};
}

}  // namespace tidemill::storage
