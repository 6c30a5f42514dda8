// SPDX-License-Identifier: Apache-2.0
// One example of each message that travels between processes, with every field set.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/wire/messages.hpp"
#include "actors/wire/serving_messages.hpp"
#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "tests/actors/serving_examples.hpp"

namespace tidemill::test {

inline std::string hex_of(const Buffer& buffer) {
  std::string hex;
  for (const std::byte byte : buffer.bytes()) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[std::to_integer<std::size_t>(byte >> 4U)];
    hex += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return hex;
}

/// Collects the fields of a message as text, in the order of its `inspect`. A list adds its size.
class Leaves {
public:
  using result_type = void;

  template <class... Ts>
  void operator()(Ts&... xs) {
    (add(xs), ...);
  }
  void add(std::string& text) { all_.push_back(text); }
  void add(bool& flag) { all_.emplace_back(flag ? "true" : "false"); }
  void add(Duration& duration) { all_.push_back(std::to_string(duration.count())); }
  void add(float& number) {
    all_.push_back("bits " + std::to_string(std::bit_cast<std::uint32_t>(number)));
  }
  void add(Buffer& buffer) {
    if (!buffer.resolved()) {
      all_.push_back(to_string(buffer.identity()));
      return;
    }
    all_.push_back("dtype " + std::to_string(static_cast<int>(buffer.identity().dtype)) + ": " +
                   hex_of(buffer));
  }
  void add(Status& status) {
    add_number(static_cast<std::uint64_t>(status.code()));
    all_.push_back(status.message());
  }
  void add(actors::StartedWorker& x) { (*this)(x.name, x.start); }
  void add(actors::WorkerEnded& x) { (*this)(x.name, x.reason, x.start); }
  void add(actors::LogLine& x) { add(x.text); }
  void add(actors::SegmentAddress& x) {
    (*this)(x.socket, x.reader);
    for (const std::byte byte : x.token) {
      add_number(std::to_integer<std::uint64_t>(byte));
    }
  }
  void add(actors::RowMemory& x) { add(x.segments); }
  void add(actors::Failure& x) { add(x.status); }
  void add(actors::StartDevice& x) {
    (*this)(x.kv_bytes, x.rollout_rows, x.sampled_rows, x.segments);
  }
  template <class First, class Second>
  void add(std::pair<First, Second>& pair) {
    (*this)(pair.first, pair.second);
  }
  void add(TensorMap& tensors) {
    all_.push_back("list of " + std::to_string(tensors.size()));
    for (auto& [name, tensor] : tensors) {
      all_.push_back(name);
      add(tensor);
    }
  }
  template <class T>
  void add(std::vector<T>& list) {
    all_.push_back("list of " + std::to_string(list.size()));
    for (T& element : list) {
      add(element);
    }
  }
  template <class T>
  void add(T& x) {
    if constexpr (std::is_enum_v<T> || std::integral<T>) {
      add_number(static_cast<std::uint64_t>(x));
    } else {
      inspect(*this, x);
    }
  }

  [[nodiscard]] const std::vector<std::string>& all() const { return all_; }

private:
  void add_number(std::uint64_t number) { all_.push_back(std::to_string(number)); }

  std::vector<std::string> all_;
};

template <class Message>
std::vector<std::string> leaves_of(Message message) {
  Leaves leaves;
  leaves.add(message);
  return leaves.all();
}

inline Buffer encoded(const actors::Failure& failure) {
  return actors::to_wire(failure.status);
}
template <class Message>
Buffer encoded(const Message& message) {
  return actors::to_wire(message);
}

/// An example without its type.
struct WireCase {
  struct Decoded {
    std::vector<std::string> leaves;
    Buffer again;  // encoded again
  };
  std::string name;    // as errors of this message begin
  std::string golden;  // the name of its bytes in tests/golden/wire
  std::vector<std::string> leaves;
  Buffer body;
  std::function<Result<Decoded>(const Buffer&)> decode;
};

template <class Message>
WireCase wire_case(std::string name, std::string golden, const Message& message) {
  return {std::move(name), std::move(golden), leaves_of(message), encoded(message),
          [](const Buffer& body) -> Result<WireCase::Decoded> {
            TIDEMILL_ASSIGN_OR_RETURN(const Message decoded, actors::from_wire<Message>(body));
            return WireCase::Decoded{leaves_of(decoded), encoded(decoded)};
          }};
}

inline storage::ColumnValue wire_cell(std::uint32_t column, std::vector<std::uint8_t> bytes,
                                      DType dtype) {
  return {{column}, Buffer::copy_of(std::as_bytes(std::span(bytes)), dtype)};
}

inline actors::LeaseRequest example_lease() {
  actors::LeaseRequest lease;
  lease.task = {3};
  lease.consumer = "reward-4";
  lease.max_units = 65;
  lease.min_units = 17;
  lease.before_group = 0x0102030405060708;
  lease.wait = std::chrono::milliseconds(2500);
  return lease;
}

/// Returns rows of two shapes: one with two cells, and one without any.
inline actors::LeaseReply example_rows() {
  actors::LeaseReply reply;
  storage::LeasedRow row;
  row.row = {{0x1122334455667788}, {0x99}, 5, 8, 21, 22, 23};
  row.lease = {{24}, 25, 26};
  row.deliveries = 27;
  row.facts = {28, 29};
  row.columns = {wire_cell(30, {1, 2, 3, 4, 5, 6, 7, 8}, DType::kI32),
                 wire_cell(31, {'{', '}'}, DType::kU8)};
  reply.rows.push_back(row);
  row = {};
  row.row = {{41}, {42}, 43, 44, 45, 46, 47};
  row.lease = {{48}, 49, 50};
  row.deliveries = 51;
  row.facts = {52, 53};
  reply.rows.push_back(row);
  reply.lease_time = std::chrono::seconds(61);
  reply.waiting_for = "rows of task \"reward\"";
  reply.ended = true;
  return reply;
}

/// Returns rows with a lent cell beside one in the message.
inline actors::LeaseReply example_lent_rows() {
  actors::LeaseReply reply;
  storage::LeasedRow& row = reply.rows.emplace_back();
  row.row = {{71}, {72}, 73, 74, 75, 76, 77};
  row.lease = {{78}, 79, 80};
  row.deliveries = 81;
  row.facts = {82, 83};
  row.columns = {{{84}, Buffer::named({85, 86, 87, 88, 89, DType::kF32})},
                 wire_cell(90, {91, 92}, DType::kU8)};
  reply.lease_time = std::chrono::seconds(93);
  reply.waiting_for = "rows of a task";
  return reply;
}

inline actors::AckRequest example_ack() {
  actors::AckRequest ack{{2}, "rollout-7", {}};
  ack.rows.push_back(
      {{{11}, 12, 13}, {wire_cell(14, {0xAA, 0xBB, 0xCC, 0xDD}, DType::kF32)}, {15, 16}});
  ack.rows.push_back({{{21}, 22, 23}, {}, {24, 25}});
  return ack;
}

inline actors::LeaseUpdate example_update() {
  actors::LeaseUpdate update{{6}, "advantage-3", {}, storage::Release::kFailed, "no reward"};
  update.rows.push_back({{{31}, 32, 33}, {wire_cell(34, {9}, DType::kBool)}, {35, 36}});
  return update;
}

inline storage::Settlement example_settlement() {
  storage::Settlement settlement;
  settlement.done = {{1001}, {1002}, {1003}};
  settlement.refused.push_back(
      {{{1004}, 1005, 1006}, storage::Refusal::kBadColumn, "column reward: not finite"});
  return settlement;
}

inline std::array<std::byte, 16> example_token() {
  std::array<std::byte, 16> token{};
  for (std::size_t i = 0; i < token.size(); ++i) {
    token[i] = static_cast<std::byte>(200 + i);
  }
  return token;
}

/// Returns an example of every message.
inline std::vector<WireCase> wire_cases() {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  LeaseRequest in_place = example_lease();
  in_place.in_place = true;
  LeaseReply whole;
  whole.waiting_for = "a group";
  whole.whole = true;
  return {
      wire_case("failure", "failure", Failure{{Errc::kNotFound, "no such row"}}),
      wire_case("lease", "lease", example_lease()),
      wire_case("lease", "lease_in_place", in_place),
      wire_case("lease reply", "lease_reply", example_rows()),
      wire_case("lease reply", "lease_reply_whole", whole),
      wire_case("lease reply", "lease_reply_lent", example_lent_rows()),
      wire_case("ack", "ack", example_ack()),
      wire_case("lease update", "lease_update", example_update()),
      wire_case("group verdict", "group_verdict",
                GroupVerdict{{0x77}, {storage::VerdictKind::kFail, "too long"}}),
      wire_case("settlement", "settlement", example_settlement()),
      wire_case("start worker", "start_worker", StartWorker{"reward-12", "reward", 12, 345}),
      wire_case("started worker", "started_worker", StartedWorker{"reward-5", 346}),
      wire_case("worker ended", "worker_ended",
                WorkerEnded{"rollout-9", {Errc::kUnavailable, "3 samples in a row"}, 347}),
      wire_case("log line", "log_line", LogLine{"reward-0: 2 samples without a reward"}),
      wire_case("row memory", "row_memory",
                RowMemory{{"runs/r/sockets/rows", 349, example_token()}}),
      wire_case("rollout request", "rollout_request", example_request()),
      wire_case("rollout request", "rollout_request_flags", example_request_of_other_flags()),
      wire_case("rollout result", "rollout_result", example_result()),
      wire_case("cancel", "cancel", SampleId{0x99}),
      wire_case("snapshot", "snapshot", example_snapshot()),
      wire_case("snapshot", "snapshot_without_base", example_snapshot_without_base()),
      wire_case("loaded version", "loaded_version", PolicyVersion{701, 702, 703}),
      wire_case("adapter request", "adapter_request", example_adapter_request()),
      wire_case("adapter list", "adapter_list", example_adapter_list()),
      wire_case("start device", "start_device",
                StartDevice{801, 802, 803, {"runs/r/sockets/weights", 804, example_token()}}),
  };
}

}  // namespace tidemill::test
