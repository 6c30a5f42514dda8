// SPDX-License-Identifier: Apache-2.0
// The contract of actors/wire/messages.hpp: what is written is read, as the same bytes in every
// version of the program.
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/wire/messages.hpp"
#include "actors/wire/stream.capnp.h"
#include "tests/actors/wire_cases.hpp"

namespace tidemill::test {
namespace {

using actors::from_wire;
using actors::to_wire;
using namespace std::chrono_literals;

constexpr std::size_t kCases = 25;
// The golden bytes of messages whose schema has got fields since.
constexpr std::size_t kOldBodies = 3;

Buffer body_of(capnp::MessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  return Buffer::copy_of(std::as_bytes(std::span(words.begin(), words.size())));
}

bool is_flag_or_size(const std::string& leaf) {
  return leaf == "true" || leaf == "false" || leaf.starts_with("list of ");
}

TEST(Wire, EveryFieldSurvivesARoundTrip) {
  const std::vector<WireCase> cases = wire_cases();
  EXPECT_EQ(cases.size(), kCases);
  for (const WireCase& example : cases) {
    SCOPED_TRACE(example.golden);
    const auto decoded = example.decode(example.body);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(decoded.value().leaves, example.leaves);
    EXPECT_EQ(hex_of(decoded.value().again), hex_of(example.body));
  }
}

// Second examples of a message, for the other values of its flags or for empty lists.
const std::set<std::string> kVariants{"lease_in_place", "lease_reply_whole",
                                      "rollout_request_flags", "snapshot_without_base"};

// Otherwise, two fields that are exchanged, or one that is left out, would not be noticed.
TEST(Wire, EveryFieldOfTheExamplesHasAValueOfItsOwn) {
  for (const WireCase& example : wire_cases()) {
    if (kVariants.contains(example.golden)) {
      continue;
    }
    std::set<std::string> seen{"0", "1", "", "18446744073709551615"};  // defaults
    for (const std::string& leaf : example.leaves) {
      EXPECT_TRUE(is_flag_or_size(leaf) || seen.insert(leaf).second)
          << example.golden << ": " << leaf;
    }
  }
}

TEST(Wire, DefaultsAndLargestNumbersSurviveARoundTrip) {
  const auto expect_round_trip = [](const auto& message) {
    const WireCase example = wire_case("", "", message);
    const auto decoded = example.decode(example.body);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(decoded.value().leaves, example.leaves);
  };
  expect_round_trip(actors::LeaseRequest{});
  expect_round_trip(actors::LeaseReply{});
  expect_round_trip(actors::AckRequest{});
  expect_round_trip(actors::LeaseUpdate{});
  expect_round_trip(actors::GroupVerdict{});
  expect_round_trip(storage::Settlement{});
  expect_round_trip(actors::StartWorker{});
  expect_round_trip(actors::StartedWorker{});
  expect_round_trip(actors::WorkerEnded{});
  expect_round_trip(actors::LogLine{});
  expect_round_trip(engines::RolloutRequest{});
  expect_round_trip(engines::RolloutResult{});
  expect_round_trip(SampleId{});
  expect_round_trip(engines::Snapshot{});
  expect_round_trip(PolicyVersion{});
  expect_round_trip(actors::AdapterRequest{});
  expect_round_trip(actors::AdapterList{});
  expect_round_trip(actors::StartDevice{});
  constexpr auto k64 = std::numeric_limits<std::uint64_t>::max();
  constexpr auto k32 = std::numeric_limits<std::uint32_t>::max();
  actors::LeaseReply reply;
  storage::LeasedRow row;
  row.row = {{k64}, {k64}, k32, k32, k64, k64, k64};
  row.lease = {{k64}, k32, k64};
  row.deliveries = k32;
  row.columns = {wire_cell(k32, {}, DType::kNf4)};  // an empty cell
  reply.rows = {row};
  reply.lease_time = std::chrono::hours(24 * 365);
  expect_round_trip(reply);
  actors::LogLine line{"a line\nwith\tcontrols, \xFF and a NUL: "};
  line.text += '\0';
  expect_round_trip(line);
}

// A cell without facts must not look like one of the oldest version, so none is not 0.
TEST(Wire, FactsThatAreNotReportedStaySo) {
  actors::AckRequest ack;
  ack.rows.push_back({{{1}, 0, 1}});
  const auto read = from_wire<actors::AckRequest>(to_wire(ack));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().rows.at(0).facts, storage::RowFacts{});
  EXPECT_EQ(read.value().rows.at(0).facts.oldest_step, storage::kNoStep);
}

TEST(Wire, ADurationThatNoMessageMayHaveBecomesTheNearestOne) {
  actors::LeaseRequest lease;
  lease.wait = Duration::max();
  auto read = from_wire<actors::LeaseRequest>(to_wire(lease));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().wait, std::chrono::hours(24 * 365));
  lease.wait = -5s;
  read = from_wire<actors::LeaseRequest>(to_wire(lease));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().wait, 0s);
}

TEST(Wire, AWorkerThatHasEndedAsAskedHasNoFailure) {
  const auto read = from_wire<actors::WorkerEnded>(to_wire(actors::WorkerEnded{"reward-1", {}}));
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read.value().reason.ok());
}

// The log-probabilities of rollout and training are compared bit for bit.
TEST(Wire, EveryBitOfAFloatSurvives) {
  engines::RolloutResult result;
  for (const std::uint32_t bits : {0x80000000U, 1U, 0x7f7fffffU, 0x7f800000U, 0x7fc12345U}) {
    result.behavior_logprobs.push_back(std::bit_cast<float>(bits));
  }
  const auto read = from_wire<engines::RolloutResult>(to_wire(result));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(leaves_of(read.value()), leaves_of(result));
}

TEST(Wire, ATimeLimitIsBoundedFromAboveAndANegativeOneStaysNegative) {
  engines::RolloutRequest request;
  request.time_limit = Duration::max();
  auto read = from_wire<engines::RolloutRequest>(to_wire(request));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().time_limit, std::chrono::hours(24 * 365));
  request.time_limit = -5s;
  read = from_wire<engines::RolloutRequest>(to_wire(request));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().time_limit, -5s) << "the engine refuses it";
}

TEST(Wire, TensorsArriveAsHandlesWithoutTheirBytes) {
  engines::Snapshot snapshot;
  const Buffer bytes = Buffer::adopt(std::vector<float>{1.0F, 2.0F}, DType::kF32);
  snapshot.base["w"] = {DType::kF32, {2}, bytes};
  snapshot.base["empty"] = {DType::kF32, {0}, Buffer()};
  const auto read = from_wire<engines::Snapshot>(to_wire(snapshot));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const Tensor& tensor = read.value().base.at("w");
  EXPECT_EQ(tensor.data.identity(), bytes.identity());
  EXPECT_FALSE(tensor.data.resolved());
  EXPECT_TRUE(read.value().base.at("empty").data.resolved()) << "it names no bytes";
}

// -- golden bytes ---------------------------------------------------------------------------------

std::map<std::string, std::string> golden_bodies() {
  std::ifstream file(TIDEMILL_TEST_DIR "/golden/wire/messages.txt");
  std::map<std::string, std::string> bodies;
  std::string name;
  std::string hex;
  while (file >> name >> hex) {
    bodies.emplace(name, hex);
  }
  return bodies;
}

Buffer bytes_of(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return Buffer::adopt(std::move(bytes), DType::kU8);
}

TEST(WireGolden, EveryMessageHasItsBytes) {
  const std::map<std::string, std::string> bodies = golden_bodies();
  EXPECT_EQ(bodies.size(), kCases + kOldBodies);
  for (const WireCase& example : wire_cases()) {
    const auto golden = bodies.find(example.golden);
    ASSERT_NE(golden, bodies.end()) << example.golden;
    EXPECT_EQ(hex_of(example.body), golden->second)
        << example.golden << ": see tests/golden/wire/README.md";
  }
}

// Before a schema had its last fields, the same example had other bytes.
TEST(WireGolden, BytesOfOlderProgramsAreStillRead) {
  const std::map<std::string, std::string> bodies = golden_bodies();
  std::size_t old = 0;
  for (const WireCase& example : wire_cases()) {
    const auto golden = bodies.find(example.golden + ".1");
    if (golden == bodies.end()) {
      continue;
    }
    ++old;
    const auto read = example.decode(bytes_of(golden->second));
    ASSERT_TRUE(read.ok()) << example.golden << ": " << read.status().to_string();
    EXPECT_EQ(read.value().leaves, example.leaves) << example.golden;
  }
  EXPECT_EQ(old, kOldBodies);
}

// -- buffers --------------------------------------------------------------------------------------

TEST(WireBuffer, KeepsTheTypeOfItsElements) {
  for (int dtype = 0; dtype <= static_cast<int>(kLastDType); ++dtype) {
    actors::AckRequest ack;
    ack.rows.push_back({{{1}, 0, 1}, {wire_cell(0, {1, 2, 3}, static_cast<DType>(dtype))}});
    const auto read = from_wire<actors::AckRequest>(to_wire(ack));
    ASSERT_TRUE(read.ok()) << dtype;
    const Buffer& cell = read.value().rows.at(0).columns.at(0).value;
    EXPECT_EQ(cell.identity().dtype, static_cast<DType>(dtype));
    EXPECT_EQ(hex_of(cell), "010203");
  }
}

// A row may stay in the stream long after the frame that brought it.
TEST(WireBuffer, ACellDoesNotKeepTheMemoryOfTheBody) {
  const Buffer body = to_wire(example_rows());
  auto memory = std::make_shared<std::vector<std::byte>>(body.bytes().begin(), body.bytes().end());
  const std::weak_ptr<std::vector<std::byte>> watched = memory;
  const std::span<const std::byte> bytes(*memory);
  auto read = from_wire<actors::LeaseReply>(Buffer::wrap(std::move(memory), bytes, DType::kU8));
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(hex_of(read.value().rows.at(0).columns.at(0).value), "0102030405060708");
}

TEST(WireBuffer, AnEncodedMessageDoesNotDependOnTheCell) {
  std::vector<std::byte> memory(8, std::byte{7});
  actors::AckRequest ack;
  ack.rows.push_back(
      {{{1}, 0, 1},
       {{{0}, Buffer::wrap(nullptr, std::span<const std::byte>(memory), DType::kU8)}}});
  const Buffer body = to_wire(ack);
  memory.assign(8, std::byte{9});
  const auto read = from_wire<actors::AckRequest>(body);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(hex_of(read.value().rows.at(0).columns.at(0).value), "0707070707070707");
}

// Returns the number of segments, which begins the table of a message.
std::uint32_t num_segments(const Buffer& body) {
  std::uint32_t less_one = 0;
  std::memcpy(&less_one, body.bytes().data(), sizeof(less_one));
  return less_one + 1;
}

// Rows are encoded where they stay. A message of another size than was estimated is copied.
TEST(WireBuffer, LargeMessagesAreEncodedOnce) {
  actors::LeaseReply reply = example_rows();
  reply.rows.resize(1);
  for (std::uint32_t column = 0; column < 9; ++column) {
    reply.rows[0].columns.push_back(
        wire_cell(column, std::vector<std::uint8_t>(40'000 + column, 'a'), DType::kU8));
  }
  const Buffer rows = to_wire(reply);
  EXPECT_EQ(num_segments(rows), 1U);
  const auto decoded = from_wire<actors::LeaseReply>(rows);
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(hex_of(to_wire(decoded.value())), hex_of(rows));

  const Status failure(Errc::kInternal, std::string(100'000, 'x'));
  const Buffer long_text = to_wire(failure);
  EXPECT_GT(num_segments(long_text), 1U);
  EXPECT_EQ(from_wire<actors::Failure>(long_text).value().status.message(), failure.message());
}

// A body lies anywhere in a frame.
TEST(WireBuffer, EveryMessageIsReadFromABodyThatIsNotAligned) {
  for (const WireCase& example : wire_cases()) {
    for (std::size_t shift = 1; shift < 8; ++shift) {
      std::vector<std::byte> shifted(example.body.size_bytes() + shift);
      std::ranges::copy(example.body.bytes(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
      const Buffer all = Buffer::adopt(std::move(shifted), DType::kU8);
      const auto read = example.decode(all.slice(shift, example.body.size_bytes(), DType::kU8));
      ASSERT_TRUE(read.ok()) << example.golden << ": " << read.status().to_string();
      EXPECT_EQ(read.value().leaves, example.leaves) << example.golden;
    }
  }
}

// -- other versions of the schemas ----------------------------------------------------------------

using Struct = capnp::AnyStruct::Builder;

// Begins a message whose root has this many words of data and pointers.
Struct root(capnp::MallocMessageBuilder& message, std::uint16_t words, std::uint16_t pointers) {
  return message.initRoot<capnp::AnyPointer>().initAsAnyStruct(words, pointers);
}

void put_number(Struct at, std::size_t word, std::uint64_t number) {
  for (std::size_t byte = 0; byte < 8; ++byte) {
    at.getDataSection()[8 * word + byte] = static_cast<kj::byte>(number >> (8 * byte));
  }
}

// Pointers inside of pointers, of a field that this program does not know.
void nest(capnp::AnyPointer::Builder at, int levels) {
  Struct inner = at.initAsAnyStruct(0, 1);
  if (levels > 1) {
    nest(inner.getPointerSection()[0], levels - 1);
  }
}

TEST(WireVersions, AMessageOfANewerProgramIsReadWithoutItsNewFields) {
  capnp::MallocMessageBuilder message;
  Struct start = root(message, 3, 4);
  put_number(start, 0, 12 | (std::uint64_t{0xFFFF} << 32U));  // `number`, and a new field
  put_number(start, 1, 99);
  start.getPointerSection()[0].setAs<capnp::Text>("reward-12");
  start.getPointerSection()[1].setAs<capnp::Text>("reward");
  start.getPointerSection()[2].setAs<capnp::Text>("a new text");
  nest(start.getPointerSection()[3], 100);
  const auto read = from_wire<actors::StartWorker>(body_of(message));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().name, "reward-12");
  EXPECT_EQ(read.value().kind, "reward");
  EXPECT_EQ(read.value().number, 12U);
}

TEST(WireVersions, RowsOfANewerProgramAreReadWithoutTheirNewFields) {
  capnp::MallocMessageBuilder message;
  Struct ack = root(message, 1, 3);
  put_number(ack, 0, 2);
  ack.getPointerSection()[0].setAs<capnp::Text>("rollout-7");
  auto rows = ack.getPointerSection()[1].initAsListOfAnyStruct(2, 4, 2);
  for (unsigned i = 0; i < 2; ++i) {
    put_number(rows[i], 0, 1234);
    Struct lease = rows[i].getPointerSection()[0].initAsAnyStruct(3, 0);
    put_number(lease, 0, 10 + i);
    put_number(lease, 1, 3);
    put_number(lease, 2, 20 + i);
    rows[i].getPointerSection()[3].setAs<capnp::Text>("new");
  }
  ack.getPointerSection()[2].setAs<capnp::Text>("new");
  const auto read = from_wire<actors::AckRequest>(body_of(message));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().consumer, "rollout-7");
  ASSERT_EQ(read.value().rows.size(), 2U);
  EXPECT_EQ(read.value().rows[0].lease, (storage::Lease{{10}, 3, 20}));
  EXPECT_EQ(read.value().rows[1].lease, (storage::Lease{{11}, 3, 21}));
}

TEST(WireVersions, AMessageOfAnOlderProgramIsReadWithTheDefaultOfItsLastField) {
  {
    capnp::MallocMessageBuilder message;
    Struct update = root(message, 1, 2);  // without `reason`
    put_number(update, 0, 6 | (std::uint64_t{2} << 32U));
    update.getPointerSection()[0].setAs<capnp::Text>("advantage-3");
    const auto read = from_wire<actors::LeaseUpdate>(body_of(message));
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read.value().task, storage::TaskId{6});
    EXPECT_EQ(read.value().release, storage::Release::kFailed);
    EXPECT_EQ(read.value().consumer, "advantage-3");
    EXPECT_EQ(read.value().reason, "");
  }
  {
    capnp::MallocMessageBuilder message;
    Struct start = root(message, 0, 2);  // without `number`
    start.getPointerSection()[0].setAs<capnp::Text>("reward-0");
    start.getPointerSection()[1].setAs<capnp::Text>("reward");
    const auto read = from_wire<actors::StartWorker>(body_of(message));
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read.value().name, "reward-0");
    EXPECT_EQ(read.value().number, 0U);
  }
}

TEST(WireVersions, RowsOfAnOlderProgramAreReadWithTheDefaultOfTheirLastField) {
  capnp::MallocMessageBuilder message;
  Struct reply = root(message, 2, 2);
  auto rows = reply.getPointerSection()[0].initAsListOfAnyStruct(1, 2, 1);  // `row` and `lease`
  put_number(rows[0], 0, 7);
  put_number(rows[0].getPointerSection()[0].initAsAnyStruct(6, 0), 0, 5);
  const auto read = from_wire<actors::LeaseReply>(body_of(message));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ASSERT_EQ(read.value().rows.size(), 1U);
  EXPECT_EQ(read.value().rows[0].row.id, SampleId{5});
  EXPECT_EQ(read.value().rows[0].deliveries, 7U);
  EXPECT_TRUE(read.value().rows[0].columns.empty());
  EXPECT_EQ(read.value().rows[0].facts, storage::RowFacts{});
}

TEST(WireVersions, AMessageMayConsistOfSeveralSegments) {
  capnp::MallocMessageBuilder message(8, capnp::AllocationStrategy::FIXED_SIZE);
  auto ack = message.initRoot<actors::wire::AckRequest>();
  ack.setConsumer("a consumer whose name fills more than the first segment, so that others follow");
  ack.initRows(3)[2].initLease().setGeneration(9);
  const auto read = from_wire<actors::AckRequest>(body_of(message));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ASSERT_EQ(read.value().rows.size(), 3U);
  EXPECT_EQ(read.value().rows[2].lease.generation, 9U);
}

}  // namespace
}  // namespace tidemill::test
