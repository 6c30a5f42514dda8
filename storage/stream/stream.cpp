// SPDX-License-Identifier: Apache-2.0
// Control plane and data plane together.
#include "storage/stream/stream.hpp"

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

Stream::Stream(std::unique_ptr<StreamIndex> index) : index_(std::move(index)) {
  for (const TaskOptions& task : index_->options().tasks) {
    std::vector<ColumnId>& inputs = inputs_.emplace_back();
    for (const std::string& input : task.inputs) {
      inputs.push_back(*index_->options().find_column(input));
    }
  }
}

Result<std::unique_ptr<Stream>> Stream::create(StreamOptions options) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<StreamIndex> index,
                            StreamIndex::create(std::move(options)));
  return std::unique_ptr<Stream>(new Stream(std::move(index)));
}

Status Stream::put(const SampleRow& row, std::span<const ColumnValue> columns,
                   const RowFacts& facts) {
  TIDEMILL_RETURN_IF_ERROR(index_->put(row, cells_of(columns), facts));
  columns_.put(row.id, columns);
  return {};
}

Result<LeasedBatch> Stream::lease(const LeaseRequest& request, TimePoint now) {
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
      TIDEMILL_CHECK(columns.ok()) << columns.status().to_string();  // ready: its inputs are here
      leased.rows.push_back({*index_->find(id), row.lease, row.deliveries, index_->facts(id),
                             std::move(columns).value()});
    }
  }
  return batch;
}

Result<Settlement> Stream::complete(TaskId task, std::span<const FinishedRow> rows, TimePoint now) {
  std::vector<Completion> completions;
  completions.reserve(rows.size());
  for (const FinishedRow& row : rows) {
    completions.push_back({row.lease, cells_of(row.columns), row.facts});
  }
  Result<Settlement> settled = index_->complete(task, completions, now);
  if (settled.ok()) {
    std::size_t next = 0;
    for (const SampleId done : settled.value().done) {  // in the order of the call
      while (rows[next].lease.row != done) {
        ++next;
      }
      if (index_->find(done) != nullptr) {  // else the last ack took it along
        columns_.put(done, rows[next].columns);
      }
    }
  }
  collect();
  return settled;
}

Result<Settlement> Stream::nack(TaskId task, std::span<const LeaseToken> rows,
                                std::string_view reason, TimePoint now) {
  Result<Settlement> settled = index_->nack(task, rows, reason, now);
  collect();
  return settled;
}

Result<Settlement> Stream::renew(TaskId task, std::span<const LeaseToken> rows, TimePoint now) {
  Result<Settlement> settled = index_->renew(task, rows, now);
  collect();
  return settled;
}

void Stream::drop_consumer(std::string_view consumer) {
  index_->drop_consumer(consumer);
  collect();
}

Status Stream::expire(TimePoint now) {
  Status status = index_->expire(now);
  collect();
  return status;
}

Status Stream::judge(SampleId row, const Verdict& verdict) {
  Status status = index_->judge(row, verdict);
  collect();
  return status;
}

Status Stream::judge_group(GroupId group, const Verdict& verdict) {
  Status status = index_->judge_group(group, verdict);
  collect();
  return status;
}

void Stream::collect() {
  StreamEffects effects = index_->take_effects();
  for (RetiredRow& row : effects.retired) {
    columns_.erase(row.id);
    effects_.retired.push_back(std::move(row));
  }
  effects_.returned.insert(effects_.returned.end(), effects.returned.begin(),
                           effects.returned.end());
  effects_.places.accepted += effects.places.accepted;
  effects_.places.aborted += effects.places.aborted;
  effects_.places.rejected += effects.places.rejected;
  effects_.places.forfeited += effects.places.forfeited;
}

StreamEffects Stream::take_effects() {
  collect();
  return std::exchange(effects_, {});
}

StreamSnapshot Stream::snapshot() const {
  StreamSnapshot stored;
  stored.index = index_->snapshot();
  for (const RowSnapshot& row : stored.index.rows) {
    stored.rows.push_back({row.row.id, columns_.read_all(row.row.id)});
  }
  return stored;
}

Status Stream::check_cells(const RowSnapshot& row, const RowColumns& cells) const {
  std::uint64_t columns = 0;
  std::uint64_t bytes = 0;
  bool twice = false;
  for (const ColumnValue& cell : cells.columns) {
    const std::uint32_t column = cell.column.value;
    if (column >= options().columns.size() ||
        !cell_fits(options().columns[column].type, cell.value.identity().dtype,
                   cell.value.size_bytes())) {
      return corrupt_data("stream snapshot: sample " + std::to_string(row.row.id.value) +
                          " has a cell that no column takes");
    }
    const std::uint64_t bit = std::uint64_t{1} << column;
    twice = twice || (columns & bit) != 0;
    columns |= bit;
    bytes += cell.value.size_bytes();
  }
  if (twice || cells.row != row.row.id || columns != row.columns || bytes != row.bytes) {
    return corrupt_data("stream snapshot: the cells of sample " + std::to_string(row.row.id.value) +
                        " are not those its index speaks of");
  }
  return {};
}

Status Stream::restore(const StreamSnapshot& snapshot) {
  if (snapshot.rows.size() != snapshot.index.rows.size()) {
    return corrupt_data("stream snapshot: " + std::to_string(snapshot.index.rows.size()) +
                        " rows, cells of " + std::to_string(snapshot.rows.size()));
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

Status Stream::check_invariants() const {
  TIDEMILL_RETURN_IF_ERROR(index_->check_invariants());
  if (columns_.num_rows() != index_->num_live() || columns_.bytes() != index_->bytes_used()) {
    return {Errc::kInternal, "stream: cells of " + std::to_string(columns_.num_rows()) +
                                 " rows with " + std::to_string(columns_.bytes()) +
                                 " bytes, the index counts " + std::to_string(index_->num_live()) +
                                 " and " + std::to_string(index_->bytes_used())};
  }
  return {};
}

}  // namespace tidemill::storage
