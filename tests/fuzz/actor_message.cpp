// SPDX-License-Identifier: Apache-2.0
// Fuzzes the messages that actors of different processes exchange. The first byte chooses the
// message, and the others are its body.
#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "actors/wire/messages.hpp"
#include "actors/wire/serving_messages.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

Buffer encoded(const actors::Failure& failure) {
  return actors::to_wire(failure.status);
}
template <class Message>
Buffer encoded(const Message& message) {
  return actors::to_wire(message);
}

template <class Message>
void check(const Buffer& body, const char* location) {
  const Result<Message> read = actors::from_wire<Message>(body);
  if (!read.ok()) {
    require(read.status().code() == Errc::kCorruptData, "a bad message is corrupt");
    require_refusal(read.status(), location);
    return;
  }
  const Buffer once = encoded(read.value());
  const Result<Message> again = actors::from_wire<Message>(once);
  require_ok(again.status(), "what was written can be read");
  const Buffer twice = encoded(again.value());
  require(std::ranges::equal(once.bytes(), twice.bytes()), "a message survives a round trip");
}

struct Row {
  void (*run)(const Buffer& body, const char* location);
  const char* location;
};

// The corpus names the messages by their place in this table.
constexpr std::array kRows{
    Row{check<actors::Failure>, "failure: "},
    Row{check<actors::LeaseRequest>, "lease: "},
    Row{check<actors::LeaseReply>, "lease reply: "},
    Row{check<actors::AckRequest>, "ack: "},
    Row{check<actors::LeaseUpdate>, "lease update: "},
    Row{check<actors::GroupVerdict>, "group verdict: "},
    Row{check<storage::Settlement>, "settlement: "},
    Row{check<actors::StartWorker>, "start worker: "},
    Row{check<actors::StartedWorker>, "started worker: "},
    Row{check<actors::WorkerEnded>, "worker ended: "},
    Row{check<actors::LogLine>, "log line: "},
    Row{check<engines::RolloutRequest>, "rollout request: "},
    Row{check<engines::RolloutResult>, "rollout result: "},
    Row{check<SampleId>, "cancel: "},
    Row{check<engines::Snapshot>, "snapshot: "},
    Row{check<PolicyVersion>, "loaded version: "},
    Row{check<actors::AdapterRequest>, "adapter request: "},
    Row{check<actors::AdapterList>, "adapter list: "},
    Row{check<actors::StartDevice>, "start device: "},
    Row{check<actors::RowMemory>, "row memory: "},
};

}  // namespace

void actor_message(std::string_view input) {
  if (input.empty()) {
    return;
  }
  const Row& row = kRows[static_cast<unsigned char>(input.front()) % kRows.size()];
  row.run(Buffer::copy_of(std::as_bytes(std::span(input.substr(1)))), row.location);
}

}  // namespace tidemill::fuzz
