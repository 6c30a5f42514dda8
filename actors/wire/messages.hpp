// SPDX-License-Identifier: Apache-2.0
// The encoding of the messages that actors of different processes exchange.
//
// Each message of a protocol has a kind, and a Cap'n Proto schema in this folder. `to_wire` encodes
// a message as the body of an envelope, and `from_wire` decodes it. Buffers of a message are copied
// into the body, and out of it, unless they are lent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "actors/stream/messages.hpp"
#include "actors/supervisor/messages.hpp"
#include "base/buffer.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "storage/records/lease.hpp"

namespace tidemill::actors {

/// What the body of an envelope is. A number is never given to another message.
enum class MessageKind : std::uint16_t {
  kFailure = 1,  // a reply: the `Status` of a request that has failed
  kDone = 2,     // a reply without content

  // `StreamConsumerActor`.
  kLease = 16,       // LeaseRequest
  kLeaseReply = 17,  // LeaseReply
  kAck = 18,         // AckRequest
  kNack = 19,        // LeaseUpdate
  kRenew = 20,       // LeaseUpdate
  kRetire = 21,      // GroupVerdict
  kSettlement = 22,  // Settlement: the reply to kAck, kNack, kRenew and kRetire

  // `ServingActor`; see serving_messages.hpp.
  kGenerate = 32,       // RolloutRequest
  kRolloutResult = 33,  // RolloutResult
  kCancel = 34,         // SampleId; no reply
  kLoad = 35,           // Snapshot
  kLoaded = 36,         // PolicyVersion
  kAdapters = 37,       // AdapterRequest
  kAdapterList = 38,    // AdapterList
  kServingEnded = 39,   // Failure; no reply: the actor that serves has ended

  kStartDevice = 48,  // StartDevice, see serving_messages.hpp; the reply is kDone

  // Control of the workers of a process.
  kStartWorker = 64,  // StartWorker; the reply is kDone
  kDrainWorker = 65,  // StartedWorker; no reply
  kStopWorker = 66,   // StartedWorker; no reply
  kWorkerEnded = 67,  // WorkerEnded; no reply
  kLogLine = 68,      // LogLine; no reply
  kRowMemory = 69,    // RowMemory; no reply
};

/// Names a worker that shall drain or stop.
struct StartedWorker {
  std::string name;
  std::uint64_t start = 0;  // as in `StartWorker`
};

/// A worker has ended.
struct WorkerEnded {
  std::string name;
  Status reason;            // success if it has drained
  std::uint64_t start = 0;  // as in `StartWorker`
};

/// A line for the log of the run.
struct LogLine {
  std::string text;
};

/// How a process gets the bytes that the process of the run lends it; see
/// transport/segments/segment_reader.hpp.
struct SegmentAddress {
  std::string socket;        // of the segment server; empty: nothing is lent in shared memory
  std::uint32_t reader = 0;  // the number of the process, as in `SegmentReaderGrant`
  std::array<std::byte, 16> token{};  // a secret; never logged
};

/// Tells a process where cells of leased rows are lent to it.
struct RowMemory {
  SegmentAddress segments;
};

/// Encodes a message. Requires resolved buffers, except in a `LeaseReply`: a cell whose handle is
/// unresolved was lent to the reader, and the message only names its bytes.
[[nodiscard]] Buffer to_wire(const Status& failure);
[[nodiscard]] Buffer to_wire(const LeaseRequest& message);
[[nodiscard]] Buffer to_wire(const LeaseReply& message);
[[nodiscard]] Buffer to_wire(const AckRequest& message);
[[nodiscard]] Buffer to_wire(const LeaseUpdate& message);
[[nodiscard]] Buffer to_wire(const GroupVerdict& message);
[[nodiscard]] Buffer to_wire(const storage::Settlement& message);
[[nodiscard]] Buffer to_wire(const StartWorker& message);
[[nodiscard]] Buffer to_wire(const StartedWorker& message);
[[nodiscard]] Buffer to_wire(const WorkerEnded& message);
[[nodiscard]] Buffer to_wire(const LogLine& message);
[[nodiscard]] Buffer to_wire(const RowMemory& message);

/// Decodes a message. The body may contain anything. Specialized for the types above; the failure
/// of a reply is decoded as a `Failure`. The handles of lent cells of a `LeaseReply` are
/// unresolved. Errors: `kCorruptData` if the body is no such message.
template <class Message>
[[nodiscard]] Result<Message> from_wire(const Buffer& body) = delete;

/// The failure of a request. A type of its own, because a `Result` cannot hold a `Status`.
struct Failure {
  Status status;  // not `ok()`
};

template <>
Result<Failure> from_wire(const Buffer& body);
template <>
Result<LeaseRequest> from_wire(const Buffer& body);
template <>
Result<LeaseReply> from_wire(const Buffer& body);
template <>
Result<AckRequest> from_wire(const Buffer& body);
template <>
Result<LeaseUpdate> from_wire(const Buffer& body);
template <>
Result<GroupVerdict> from_wire(const Buffer& body);
template <>
Result<storage::Settlement> from_wire(const Buffer& body);
template <>
Result<StartWorker> from_wire(const Buffer& body);
template <>
Result<StartedWorker> from_wire(const Buffer& body);
template <>
Result<WorkerEnded> from_wire(const Buffer& body);
template <>
Result<LogLine> from_wire(const Buffer& body);
template <>
Result<RowMemory> from_wire(const Buffer& body);

}  // namespace tidemill::actors
