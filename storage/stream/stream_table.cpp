// SPDX-License-Identifier: Apache-2.0
// The control plane and the data plane together.
#include "storage/stream/stream_table.hpp"

#include <utility>

namespace tidemill::storage {
namespace {

std::vector<CellInfo> cells_of(std::span<const ColumnValue> values) {
  std::vector<CellInfo> cells;
  cells.reserve(values.size());
  for (const ColumnValue& value : values) {
    cells.push_back({value.column, value.value.size_bytes(), value.value.identity().dtype});
  }
  return cells;
}

}  // namespace

StreamTable::StreamTable(std::unique_ptr<StreamIndex> index) : index_(std::move(index)) {
  for (const TaskOptions& task : index_->options().tasks) {
    std::vector<ColumnId>& inputs = inputs_.emplace_back();
    for (const std::string& input : task.inputs) {
      inputs.push_back(*index_->options().find_column(input));
    }
  }
}

Result<std::unique_ptr<StreamTable>> StreamTable::create(StreamOptions options) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<StreamIndex> index,
                            StreamIndex::create(std::move(options)));
  return std::unique_ptr<StreamTable>(new StreamTable(std::move(index)));
}

Status StreamTable::put(const SampleRow& row, std::span<const ColumnValue> columns,
                        const RowFacts& facts) {
  TIDEMILL_RETURN_IF_ERROR(index_->put(row, cells_of(columns), facts));
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
      leased.rows.push_back({*index_->find(id), row.lease, row.deliveries, index_->facts(id),
                             std::move(columns).value()});
    }
  }
  return batch;
}

Result<Settlement> StreamTable::complete(TaskId task, std::span<const FinishedRow> rows,
                                         TimePoint now) {
  std::vector<FinishedRowInfo> finished;
  finished.reserve(rows.size());
  for (const FinishedRow& row : rows) {
    finished.push_back({row.lease, cells_of(row.columns), row.facts});
  }
  Result<Settlement> settled = index_->complete(task, finished, now);
  if (settled.ok()) {
    std::size_t next = 0;
    for (const SampleId done : settled.value().done) {  // in the order of the call
      while (rows[next].lease.row != done) {
        ++next;
      }
      if (index_->find(done) != nullptr) {  // null: this was the last ack, and the row has left
        columns_.put(done, rows[next].columns);
      }
    }
  }
  collect();
  return settled;
}

Result<Settlement> StreamTable::nack(TaskId task, std::span<const LeaseToken> rows, Release release,
                                     std::string_view reason, TimePoint now) {
  Result<Settlement> settled = index_->nack(task, rows, release, reason, now);
  collect();
  return settled;
}

Result<Settlement> StreamTable::renew(TaskId task, std::span<const LeaseToken> rows,
                                      TimePoint now) {
  Result<Settlement> settled = index_->renew(task, rows, now);
  collect();
  return settled;
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
    if (column >= options().columns.size() ||
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
