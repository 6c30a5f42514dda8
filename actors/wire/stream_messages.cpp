// SPDX-License-Identifier: Apache-2.0
#include "actors/wire/codec.hpp"
#include "actors/wire/messages.hpp"
#include "actors/wire/stream.capnp.h"
#include "storage/records/refusal.hpp"
#include "storage/records/verdict.hpp"

// Found by their first argument. Not in an unnamed namespace, in which they would not be found.
namespace tidemill::actors::wire {

static void write(Lease::Builder out, const storage::Lease& lease) {
  out.setRow(lease.row.value);
  out.setIncarnation(lease.incarnation);
  out.setGeneration(lease.generation);
}
static storage::Lease read_lease(Lease::Reader in) {
  return {{in.getRow()}, in.getIncarnation(), in.getGeneration()};
}

static void write(SampleRow::Builder out, const storage::SampleRow& row) {
  out.setId(row.id.value);
  out.setGroup(row.group.value);
  out.setIndexInGroup(row.index_in_group);
  out.setGroupSize(row.group_size);
  out.setEpoch(row.epoch);
  out.setDataPosition(row.data_position);
  out.setMinStep(row.min_step);
}
static storage::SampleRow read_row(SampleRow::Reader in) {
  return {{in.getId()},  {in.getGroup()},      in.getIndexInGroup(), in.getGroupSize(),
          in.getEpoch(), in.getDataPosition(), in.getMinStep()};
}

static void write(RowFacts::Builder out, const storage::RowFacts& facts) {
  out.setOldestStep(facts.oldest_step);
  out.setTokens(facts.tokens);
}
static storage::RowFacts read_facts(RowFacts::Reader in) {
  return {in.getOldestStep(), in.getTokens()};
}

static void write(Cell::Builder out, const storage::ColumnValue& cell) {
  out.setColumn(cell.column.value);
  if (cell.value.resolved()) {
    write(out.initValue(), cell.value);
  } else {
    out.initValue().setDtype(static_cast<std::uint16_t>(cell.value.identity().dtype));
    write(out.initLent(), cell.value.identity());
  }
}
static Status read(Cell::Reader in, storage::ColumnValue& cell) {
  cell.column.value = in.getColumn();
  TIDEMILL_RETURN_IF_ERROR(read(in.getValue(), cell.value));
  if (!in.hasLent()) {
    return {};
  }
  const tidemill::BufferIdentity lent = read_identity(in.getLent(), cell.value.identity().dtype);
  if (cell.value.size_bytes() > 0 || lent.length == 0 || !can_exist(lent)) {
    return corrupt_data("a lent cell of " + std::to_string(lent.length) + " bytes, with " +
                        std::to_string(cell.value.size_bytes()) + " others");
  }
  cell.value = Buffer::named(lent);
  return {};
}

static void write(LeasedRow::Builder out, const storage::LeasedRow& row) {
  write(out.initRow(), row.row);
  write(out.initLease(), row.lease);
  out.setDeliveries(row.deliveries);
  write(out.initFacts(), row.facts);
  write_list(row.columns, [&](unsigned size) { return out.initCells(size); });
}
static Status read(LeasedRow::Reader in, storage::LeasedRow& row) {
  row.row = read_row(in.getRow());
  row.lease = read_lease(in.getLease());
  row.deliveries = in.getDeliveries();
  row.facts = read_facts(in.getFacts());
  return read_list(in.getCells(), row.columns);
}

static void write(HeldRow::Builder out, const storage::HeldRow& row) {
  write(out.initLease(), row.lease);
  write_list(row.columns, [&](unsigned size) { return out.initCells(size); });
  write(out.initFacts(), row.facts);
}
static Status read(HeldRow::Reader in, storage::HeldRow& row) {
  row.lease = read_lease(in.getLease());
  row.facts = read_facts(in.getFacts());
  TIDEMILL_RETURN_IF_ERROR(read_list(in.getCells(), row.columns));
  for (const storage::ColumnValue& cell : row.columns) {
    if (!cell.value.resolved()) {
      return corrupt_data("a lent cell, which only leased rows have");
    }
  }
  return {};
}

static void write(LeaseRequest::Builder out, const actors::LeaseRequest& message) {
  out.setTask(message.task.value);
  out.setConsumer(text_of(message.consumer));
  out.setMaxUnits(message.max_units);
  out.setMinUnits(message.min_units);
  out.setBeforeGroup(message.before_group);
  out.setWaitNs(write_duration(message.wait));
  out.setInPlace(message.in_place);
}
static Status read(LeaseRequest::Reader in, actors::LeaseRequest& message) {
  message.task.value = in.getTask();
  message.consumer = read_text(in.getConsumer());
  message.max_units = in.getMaxUnits();
  message.min_units = in.getMinUnits();
  message.before_group = in.getBeforeGroup();
  message.in_place = in.getInPlace();
  return read_duration(in.getWaitNs(), "wait_ns", message.wait);
}

static void write(LeaseReply::Builder out, const actors::LeaseReply& message) {
  write_list(message.rows, [&](unsigned size) { return out.initRows(size); });
  out.setLeaseTimeNs(write_duration(message.lease_time));
  out.setWaitingFor(text_of(message.waiting_for));
  out.setEnded(message.ended);
  out.setWhole(message.whole);
}
static Status read(LeaseReply::Reader in, actors::LeaseReply& message) {
  message.waiting_for = read_text(in.getWaitingFor());
  message.ended = in.getEnded();
  message.whole = in.getWhole();
  TIDEMILL_RETURN_IF_ERROR(read_duration(in.getLeaseTimeNs(), "lease_time_ns", message.lease_time));
  return read_list(in.getRows(), message.rows);
}

static void write(AckRequest::Builder out, const actors::AckRequest& message) {
  out.setTask(message.task.value);
  out.setConsumer(text_of(message.consumer));
  write_list(message.rows, [&](unsigned size) { return out.initRows(size); });
}
static Status read(AckRequest::Reader in, actors::AckRequest& message) {
  message.task.value = in.getTask();
  message.consumer = read_text(in.getConsumer());
  return read_list(in.getRows(), message.rows);
}

static void write(LeaseUpdate::Builder out, const actors::LeaseUpdate& message) {
  out.setTask(message.task.value);
  out.setConsumer(text_of(message.consumer));
  write_list(message.rows, [&](unsigned size) { return out.initRows(size); });
  out.setRelease(static_cast<std::uint16_t>(message.release));
  out.setReason(text_of(message.reason));
}
static Status read(LeaseUpdate::Reader in, actors::LeaseUpdate& message) {
  message.task.value = in.getTask();
  message.consumer = read_text(in.getConsumer());
  message.reason = read_text(in.getReason());
  TIDEMILL_RETURN_IF_ERROR(
      read_enum(in.getRelease(), storage::Release::kFailed, "release", message.release));
  return read_list(in.getRows(), message.rows);
}

static void write(GroupVerdict::Builder out, const actors::GroupVerdict& message) {
  out.setGroup(message.group.value);
  out.setKind(static_cast<std::uint16_t>(message.verdict.kind));
  out.setReason(text_of(message.verdict.reason));
}
static Status read(GroupVerdict::Reader in, actors::GroupVerdict& message) {
  message.group.value = in.getGroup();
  message.verdict.reason = read_text(in.getReason());
  return read_enum(in.getKind(), storage::VerdictKind::kFail, "kind", message.verdict.kind);
}

static void write(RefusedRow::Builder out, const storage::RefusedRow& row) {
  write(out.initLease(), row.lease);
  out.setReason(static_cast<std::uint16_t>(row.reason));
  out.setDetail(text_of(row.detail));
}
static Status read(RefusedRow::Reader in, storage::RefusedRow& row) {
  row.lease = read_lease(in.getLease());
  row.detail = read_text(in.getDetail());
  return read_enum(in.getReason(), storage::Refusal::kForeignSnapshot, "reason", row.reason);
}

static void write(Settlement::Builder out, const storage::Settlement& message) {
  auto done = out.initDone(static_cast<unsigned>(message.done.size()));
  for (unsigned i = 0; i < done.size(); ++i) {
    done.set(i, message.done[i].value);
  }
  write_list(message.refused, [&](unsigned size) { return out.initRefused(size); });
}
static Status read(Settlement::Reader in, storage::Settlement& message) {
  for (const std::uint64_t id : in.getDone()) {
    message.done.push_back({id});
  }
  return read_list(in.getRefused(), message.refused);
}

}  // namespace tidemill::actors::wire

namespace tidemill::actors {
namespace {

// Estimates the size of encoded rows, from above. Units: bytes.
template <class Row>
std::size_t estimate_bytes(const std::vector<Row>& rows) {
  constexpr std::size_t kRowBytes = 256;
  constexpr std::size_t kCellBytes = 64;
  std::size_t bytes = 0;
  for (const Row& row : rows) {
    bytes += kRowBytes;
    for (const storage::ColumnValue& cell : row.columns) {
      bytes += kCellBytes + (cell.value.resolved() ? cell.value.size_bytes() : 0);
    }
  }
  return bytes;
}

}  // namespace

Buffer to_wire(const LeaseRequest& message) {
  return encode<wire::LeaseRequest>(message);
}
template <>
Result<LeaseRequest> from_wire(const Buffer& body) {
  return decode<wire::LeaseRequest, LeaseRequest>(body, "lease");
}

Buffer to_wire(const LeaseReply& message) {
  return encode<wire::LeaseReply>(message, estimate_bytes(message.rows));
}
template <>
Result<LeaseReply> from_wire(const Buffer& body) {
  return decode<wire::LeaseReply, LeaseReply>(body, "lease reply");
}

Buffer to_wire(const AckRequest& message) {
  return encode<wire::AckRequest>(message, estimate_bytes(message.rows));
}
template <>
Result<AckRequest> from_wire(const Buffer& body) {
  return decode<wire::AckRequest, AckRequest>(body, "ack");
}

Buffer to_wire(const LeaseUpdate& message) {
  return encode<wire::LeaseUpdate>(message, estimate_bytes(message.rows));
}
template <>
Result<LeaseUpdate> from_wire(const Buffer& body) {
  return decode<wire::LeaseUpdate, LeaseUpdate>(body, "lease update");
}

Buffer to_wire(const GroupVerdict& message) {
  return encode<wire::GroupVerdict>(message);
}
template <>
Result<GroupVerdict> from_wire(const Buffer& body) {
  return decode<wire::GroupVerdict, GroupVerdict>(body, "group verdict");
}

Buffer to_wire(const storage::Settlement& message) {
  return encode<wire::Settlement>(message);
}
template <>
Result<storage::Settlement> from_wire(const Buffer& body) {
  return decode<wire::Settlement, storage::Settlement>(body, "settlement");
}

}  // namespace tidemill::actors
