// SPDX-License-Identifier: Apache-2.0
#include "actors/wire/codec.hpp"
#include "actors/wire/messages.hpp"
#include "actors/wire/worker.capnp.h"

// Found by their first argument. Not in an unnamed namespace, in which they would not be found.
namespace tidemill::actors::wire {

static void write(Failure::Builder out, const Status& status) {
  out.setCode(static_cast<std::uint16_t>(status.code()));
  out.setMessage(text_of(status.message()));
}
static Status read(Failure::Reader in, actors::Failure& failure) {
  TIDEMILL_RETURN_IF_ERROR(read_status(in.getCode(), read_text(in.getMessage()), failure.status));
  return failure.status.ok() ? corrupt_data("it names no failure") : Status();
}

static void write(StartWorker::Builder out, const actors::StartWorker& message) {
  out.setName(text_of(message.name));
  out.setKind(text_of(message.kind));
  out.setNumber(message.number);
  out.setStart(message.start);
}
static Status read(StartWorker::Reader in, actors::StartWorker& message) {
  message.name = read_text(in.getName());
  message.kind = read_text(in.getKind());
  message.number = in.getNumber();
  message.start = in.getStart();
  return {};
}

static void write(StartedWorker::Builder out, const actors::StartedWorker& message) {
  out.setName(text_of(message.name));
  out.setStart(message.start);
}
static Status read(StartedWorker::Reader in, actors::StartedWorker& message) {
  message.name = read_text(in.getName());
  message.start = in.getStart();
  return {};
}

static void write(WorkerEnded::Builder out, const actors::WorkerEnded& message) {
  out.setName(text_of(message.name));
  out.setCode(static_cast<std::uint16_t>(message.reason.code()));
  out.setReason(text_of(message.reason.message()));
  out.setStart(message.start);
}
static Status read(WorkerEnded::Reader in, actors::WorkerEnded& message) {
  message.name = read_text(in.getName());
  message.start = in.getStart();
  return read_status(in.getCode(), read_text(in.getReason()), message.reason);
}

static void write(LogLine::Builder out, const actors::LogLine& message) {
  out.setText(text_of(message.text));
}
static Status read(LogLine::Reader in, actors::LogLine& message) {
  message.text = read_text(in.getText());
  return {};
}

static void write(RowMemory::Builder out, const actors::RowMemory& message) {
  write(out.initSegments(), message.segments);
}
static Status read(RowMemory::Reader in, actors::RowMemory& message) {
  return read(in.getSegments(), message.segments);
}

}  // namespace tidemill::actors::wire

namespace tidemill::actors {

Buffer to_wire(const Status& failure) {
  return encode<wire::Failure>(failure);
}
template <>
Result<Failure> from_wire(const Buffer& body) {
  return decode<wire::Failure, Failure>(body, "failure");
}

Buffer to_wire(const StartWorker& message) {
  return encode<wire::StartWorker>(message);
}
template <>
Result<StartWorker> from_wire(const Buffer& body) {
  return decode<wire::StartWorker, StartWorker>(body, "start worker");
}

Buffer to_wire(const StartedWorker& message) {
  return encode<wire::StartedWorker>(message);
}
template <>
Result<StartedWorker> from_wire(const Buffer& body) {
  return decode<wire::StartedWorker, StartedWorker>(body, "started worker");
}

Buffer to_wire(const WorkerEnded& message) {
  return encode<wire::WorkerEnded>(message);
}
template <>
Result<WorkerEnded> from_wire(const Buffer& body) {
  return decode<wire::WorkerEnded, WorkerEnded>(body, "worker ended");
}

Buffer to_wire(const LogLine& message) {
  return encode<wire::LogLine>(message);
}
template <>
Result<LogLine> from_wire(const Buffer& body) {
  return decode<wire::LogLine, LogLine>(body, "log line");
}

Buffer to_wire(const RowMemory& message) {
  return encode<wire::RowMemory>(message);
}
template <>
Result<RowMemory> from_wire(const Buffer& body) {
  return decode<wire::RowMemory, RowMemory>(body, "row memory");
}

}  // namespace tidemill::actors
