// SPDX-License-Identifier: Apache-2.0
// Bodies that another process may have damaged, or made to do harm. Sanitizers check that no reader
// leaves the body.
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/wire/messages.hpp"
#include "actors/wire/serving.capnp.h"
#include "actors/wire/stream.capnp.h"
#include "actors/wire/worker.capnp.h"
#include "tests/actors/wire_cases.hpp"

namespace tidemill::test {
namespace {

using actors::from_wire;

// A Cap'n Proto message word by word: its only segment.
Buffer words_of(std::vector<std::uint64_t> segment) {
  segment.insert(segment.begin(), static_cast<std::uint64_t>(segment.size()) << 32U);
  return Buffer::adopt(std::move(segment), DType::kU64);
}

// A pointer to a struct or a list that begins `offset` words after the pointer.
std::uint64_t struct_pointer(std::int32_t offset, std::uint64_t words, std::uint64_t pointers) {
  return (static_cast<std::uint32_t>(offset) << 2U) | (words << 32U) | (pointers << 48U);
}
std::uint64_t list_pointer(std::int32_t offset, std::uint64_t element_size, std::uint64_t count) {
  return (static_cast<std::uint32_t>(offset) << 2U) | 1U | (element_size << 32U) | (count << 35U);
}
constexpr std::uint64_t kVoid = 0;  // sizes of elements
constexpr std::uint64_t kOneByte = 2;
constexpr std::uint64_t kEightBytes = 5;
constexpr std::uint64_t kComposite = 7;
constexpr std::uint64_t kMaxCount = (1U << 29U) - 1;

template <class Schema, class Fill>
Buffer built(Fill fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<Schema>());
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  return Buffer::copy_of(std::as_bytes(std::span(words.begin(), words.size())));
}

template <class Message>
void expect_corrupt(const Buffer& body, const std::string& message) {
  const Status status = from_wire<Message>(body).status();
  EXPECT_EQ(status.code(), Errc::kCorruptData) << status.to_string();
  EXPECT_EQ(status.message(), message);
}

TEST(WireHostile, EveryTruncationIsRefused) {
  for (const WireCase& example : wire_cases()) {
    for (std::size_t size = 0; size < example.body.size_bytes(); ++size) {
      const Status status = example.decode(example.body.slice(0, size, DType::kU8)).status();
      EXPECT_EQ(status.code(), Errc::kCorruptData) << example.golden << " " << size;
      EXPECT_EQ(status.message(), example.name + (size % 8 == 0 && size > 0
                                                      ? ": not a Cap'n Proto message"
                                                      : ": " + std::to_string(size) +
                                                            " bytes are no whole number of words"))
          << example.golden;
    }
  }
}

TEST(WireHostile, BytesAfterTheEndAreRefused) {
  for (const WireCase& example : wire_cases()) {
    std::vector<std::byte> longer(example.body.bytes().begin(), example.body.bytes().end());
    longer.resize(longer.size() + 8);
    EXPECT_EQ(example.decode(Buffer::adopt(std::move(longer), DType::kU8)).status().message(),
              example.name + ": bytes after the end of the message");
  }
}

// A bit may change a number or a text. It never makes a message out of more bytes than it has.
TEST(WireHostile, EveryFlippedBitIsReadOrRefused) {
  for (const WireCase& example : wire_cases()) {
    SCOPED_TRACE(example.golden);
    std::size_t refused = 0;
    std::size_t read = 0;
    for (std::size_t bit = 0; bit < example.body.size_bytes() * 8; ++bit) {
      std::vector<std::byte> changed(example.body.bytes().begin(), example.body.bytes().end());
      changed[bit / 8] ^= std::byte{1} << (bit % 8);
      const auto decoded = example.decode(Buffer::adopt(std::move(changed), DType::kU8));
      if (decoded.ok()) {
        ++read;
        std::size_t content = 0;
        for (const std::string& leaf : decoded.value().leaves) {
          content += leaf.size();
        }
        // A number has at most 20 digits, and a byte of a cell two.
        EXPECT_LE(content, 64 * example.body.size_bytes()) << bit;
        EXPECT_EQ(hex_of(example.decode(decoded.value().again).value().again),
                  hex_of(decoded.value().again))
            << bit;
      } else {
        ++refused;
        EXPECT_EQ(decoded.status().code(), Errc::kCorruptData) << bit;
        EXPECT_TRUE(decoded.status().message().starts_with(example.name + ": ")) << bit;
        EXPECT_LE(decoded.status().message().size(), 100U) << bit;
      }
    }
    EXPECT_GT(refused, 60U);
    EXPECT_GT(read, 60U);
  }
}

TEST(WireHostile, UnknownEnumeratorsAreRefusedByName) {
  namespace wire = actors::wire;
  expect_corrupt<actors::Failure>(built<wire::Failure>([](auto out) { out.setCode(12); }),
                                  "failure: code 12 is unknown");
  expect_corrupt<actors::Failure>(built<wire::Failure>([](auto out) { out.setCode(6); }),
                                  "failure: code 6 is unknown");
  expect_corrupt<actors::Failure>(built<wire::Failure>([](auto out) { out.setCode(0); }),
                                  "failure: it names no failure");
  expect_corrupt<actors::WorkerEnded>(
      built<wire::WorkerEnded>([](auto out) { out.setCode(65535); }),
      "worker ended: code 65535 is unknown");
  expect_corrupt<actors::LeaseUpdate>(built<wire::LeaseUpdate>([](auto out) { out.setRelease(3); }),
                                      "lease update: release 3 is unknown");
  expect_corrupt<actors::LeaseUpdate>(
      built<wire::LeaseUpdate>([](auto out) { out.setRelease(256); }),
      "lease update: release 256 is unknown");
  expect_corrupt<actors::GroupVerdict>(built<wire::GroupVerdict>([](auto out) { out.setKind(3); }),
                                       "group verdict: kind 3 is unknown");
  const auto refusal = static_cast<std::uint16_t>(storage::kNumRefusals);
  expect_corrupt<storage::Settlement>(
      built<wire::Settlement>([&](auto out) { out.initRefused(1)[0].setReason(refusal); }),
      "settlement: reason " + std::to_string(refusal) + " is unknown");
  expect_corrupt<actors::AckRequest>(built<wire::AckRequest>([](auto out) {
                                       auto cell = out.initRows(1)[0].initCells(1)[0];
                                       cell.initValue().setDtype(15);
                                     }),
                                     "ack: dtype 15 is unknown");
}

TEST(WireHostile, DurationsThatNoClockHoldsAreRefused) {
  namespace wire = actors::wire;
  constexpr std::uint64_t kYear = 365ULL * 24 * 3600 * 1'000'000'000;
  const auto lease = [](std::uint64_t wait) {
    return built<wire::LeaseRequest>([wait](auto out) { out.setWaitNs(wait); });
  };
  EXPECT_TRUE(from_wire<actors::LeaseRequest>(lease(kYear)).ok());
  expect_corrupt<actors::LeaseRequest>(lease(kYear + 1),
                                       "lease: wait_ns 31536000000000001 is out of range");
  expect_corrupt<actors::LeaseRequest>(lease(std::numeric_limits<std::uint64_t>::max()),
                                       "lease: wait_ns 18446744073709551615 is out of range");
  expect_corrupt<actors::LeaseReply>(
      built<wire::LeaseReply>([](auto out) { out.setLeaseTimeNs(std::uint64_t{1} << 63U); }),
      "lease reply: lease_time_ns 9223372036854775808 is out of range");
}

// -- devices --------------------------------------------------------------------------------------

TEST(WireHostile, ADeviceOfNoSizeAndATokenOfAnotherLengthAreRefused) {
  const auto start = [](std::int64_t rows, std::size_t token_bytes) {
    return built<actors::wire::StartDevice>([&](auto out) {
      out.setKvBytes(1);
      out.setRolloutRows(rows);
      out.setSampledRows(1);
      const std::vector<kj::byte> token(token_bytes);
      out.initSegments().setToken({token.data(), token.size()});
    });
  };
  EXPECT_TRUE(actors::from_wire<actors::StartDevice>(start(1, 16)).ok());
  expect_corrupt<actors::StartDevice>(start(0, 16), "start device: a size below 1");
  expect_corrupt<actors::StartDevice>(start(-4, 16), "start device: a size below 1");
  expect_corrupt<actors::StartDevice>(start(1, 0), "start device: a token of 0 bytes");
  expect_corrupt<actors::StartDevice>(start(1, 17), "start device: a token of 17 bytes");
}

// -- tensors --------------------------------------------------------------------------------------

// Returns a snapshot with one tensor of F32, and fills in the rest of it.
template <class Fill>
Buffer with_tensor(Fill fill) {
  return built<actors::wire::Snapshot>([&](auto out) {
    auto tensor = out.initBase(1)[0];
    tensor.setName("w");
    tensor.setDtype(static_cast<std::uint16_t>(DType::kF32));
    fill(tensor);
  });
}

template <class Out>
void set_shape(Out tensor, std::vector<std::int64_t> shape, std::uint64_t length) {
  auto extents = tensor.initShape(static_cast<unsigned>(shape.size()));
  for (unsigned i = 0; i < extents.size(); ++i) {
    extents.set(i, shape[i]);
  }
  tensor.initBuffer().setLength(length);
}

TEST(WireHostile, ATensorWhoseFieldsDoNotFitTogetherIsRefused) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const struct {
    std::vector<std::int64_t> shape;
    std::uint64_t length;
    std::string fault;  // empty: it is read
  } cases[] = {
      {{2, 3}, 24, ""},
      {{}, 4, ""},
      {{0, 7}, 0, ""},
      {{2, 3}, 23, "a buffer of 23 bytes instead of 24"},
      {{2, 3}, 0, "a buffer of 0 bytes instead of 24"},
      {{}, 0, "a buffer of 0 bytes instead of 4"},
      {{-1, 3}, 12, "a negative extent"},
      {{-2, -3}, 24, "a negative extent"},
      {{kLargest, 2}, 0, "type and shape do not fit together"},
      {{kLargest / 4 + 1}, 4, "type and shape do not fit together"},
      {{std::int64_t{1} << 32, std::int64_t{1} << 32, 4}, 0, "type and shape do not fit together"},
  };
  for (const auto& [shape, length, fault] : cases) {
    const Buffer body = with_tensor(
        [&shape = shape, length = length](auto tensor) { set_shape(tensor, shape, length); });
    if (fault.empty()) {
      EXPECT_TRUE(from_wire<engines::Snapshot>(body).ok()) << length;
    } else {
      expect_corrupt<engines::Snapshot>(body, "snapshot: a tensor with " + fault);
    }
  }
}

TEST(WireHostile, ATensorOutsideOfEverySegmentIsRefused) {
  const auto at = [](std::uint64_t offset) {
    return with_tensor([&](auto tensor) {
      set_shape(tensor, {4}, 16);
      tensor.getBuffer().setOffset(offset);
    });
  };
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(from_wire<engines::Snapshot>(at(kLast - 16)).ok());
  expect_corrupt<engines::Snapshot>(at(kLast - 15),
                                    "snapshot: a tensor with a buffer that no segment contains");
}

// The stream would keep cells whose bytes were never sent.
TEST(WireHostile, OnlyLeasedRowsHaveLentCells) {
  const Buffer lent = Buffer::named({1, 2, 3, 4, 5, DType::kU8});
  actors::AckRequest ack{{2}, "rollout-7", {}};
  ack.rows.push_back({{{11}, 12, 13}, {{{14}, lent}}, {15, 16}});
  EXPECT_EQ(from_wire<actors::AckRequest>(to_wire(ack)).status().message(),
            "ack: a lent cell, which only leased rows have");
  actors::LeaseUpdate update{{2}, "rollout-7", ack.rows};
  EXPECT_EQ(from_wire<actors::LeaseUpdate>(to_wire(update)).status().message(),
            "lease update: a lent cell, which only leased rows have");
}

TEST(WireHostile, ALentCellOutsideOfEverySegmentIsRefused) {
  actors::LeaseReply reply;
  reply.rows.emplace_back().columns = {
      {{1}, Buffer::named({1, 2, 3, std::numeric_limits<std::uint64_t>::max(), 2, DType::kU8})}};
  EXPECT_EQ(from_wire<actors::LeaseReply>(to_wire(reply)).status().message(),
            "lease reply: a lent cell of 2 bytes, with 0 others");
}

TEST(WireHostile, ABlockTypeNeedsWholeBlocks) {
  const auto of = [](DType dtype, std::int64_t columns, std::uint64_t length) {
    return with_tensor([&](auto tensor) {
      set_shape(tensor, {2, columns}, length);
      tensor.setDtype(static_cast<std::uint16_t>(dtype));
    });
  };
  EXPECT_TRUE(from_wire<engines::Snapshot>(of(DType::kBlockI8, 32, 68)).ok());
  expect_corrupt<engines::Snapshot>(of(DType::kBlockI8, 33, 68),
                                    "snapshot: a tensor with type and shape do not fit together");
}

TEST(WireHostile, TwoTensorsOfOneNameAreRefused) {
  const Buffer body = built<actors::wire::AdapterRequest>([](auto out) {
    auto tensors = out.initTensors(2);
    for (auto tensor : tensors) {
      tensor.setName("w");
      set_shape(tensor, {3}, 3);
    }
  });
  expect_corrupt<actors::AdapterRequest>(body, "adapter request: two tensors with one name");
}

TEST(WireHostile, UnknownEnumeratorsOfServingAreRefusedByName) {
  namespace wire = actors::wire;
  expect_corrupt<engines::RolloutRequest>(
      built<wire::RolloutRequest>([](auto out) { out.setPriority(4); }),
      "rollout request: priority 4 is unknown");
  expect_corrupt<engines::RolloutResult>(
      built<wire::RolloutResult>([](auto out) { out.setFinishReason(4); }),
      "rollout result: finish reason 4 is unknown");
  expect_corrupt<actors::AdapterRequest>(
      built<wire::AdapterRequest>([](auto out) { out.setAction(3); }),
      "adapter request: action 3 is unknown");
  expect_corrupt<engines::Snapshot>(with_tensor([](auto tensor) { tensor.setDtype(15); }),
                                    "snapshot: dtype 15 is unknown");
  expect_corrupt<engines::RolloutRequest>(
      built<wire::RolloutRequest>(
          [](auto out) { out.setTimeLimitNs(std::numeric_limits<std::int64_t>::max()); }),
      "rollout request: time_limit_ns 9223372036854775807 is out of range");
}

// -- pointers -------------------------------------------------------------------------------------

// A pointer may name a list of 2^29 - 1 elements, of any size, in a body of a few words.
TEST(WireHostile, AListThatIsLongerThanTheBodyIsRefused) {
  for (std::uint64_t size = 0; size <= kComposite; ++size) {
    SCOPED_TRACE(size);
    const Buffer settlement =
        words_of({struct_pointer(0, 0, 2), list_pointer(1, size, kMaxCount),
                  list_pointer(0, size, kMaxCount),
                  struct_pointer(static_cast<std::int32_t>(kMaxCount), 0, 0), 0});
    expect_corrupt<storage::Settlement>(settlement, "settlement: not a Cap'n Proto message");
    const Buffer reply =
        words_of({struct_pointer(0, 2, 2), 0, 0, list_pointer(1, size, kMaxCount), 0,
                  struct_pointer(static_cast<std::int32_t>(kMaxCount), 0, 0), 0});
    EXPECT_EQ(from_wire<actors::LeaseReply>(reply).status().code(), Errc::kCorruptData);
  }
}

// Cap'n Proto reads a list of bytes as a list of structs, each with one byte. A body of 16 MiB
// would be 16 million rows, which take gigabytes.
TEST(WireHostile, AListOfBytesIsNoListOfRows) {
  for (const std::uint64_t size : {kVoid, kOneByte, kEightBytes}) {
    SCOPED_TRACE(size);
    const Buffer reply = words_of(
        {struct_pointer(0, 2, 2), 0, 0, list_pointer(1, size, 8), 0, 0, 0, 0, 0, 0, 0, 0, 0});
    EXPECT_EQ(from_wire<actors::LeaseReply>(reply).status().message(),
              "lease reply: a list of 8 elements that are no structs");
  }
}

TEST(WireHostile, StructsWithoutContentCountTowardTheSizeOfTheBody) {
  const auto reply = [](std::uint64_t count) {
    return words_of({struct_pointer(0, 2, 2), 0, 0, list_pointer(1, kComposite, 0), 0,
                     struct_pointer(static_cast<std::int32_t>(count), 0, 0), 0, 0});
  };
  const auto two = from_wire<actors::LeaseReply>(reply(2));
  ASSERT_TRUE(two.ok()) << two.status().to_string();
  EXPECT_EQ(two.value().rows.size(), 2U);
  expect_corrupt<actors::LeaseReply>(reply(9), "lease reply: not a Cap'n Proto message");
  expect_corrupt<actors::LeaseReply>(reply(kMaxCount), "lease reply: not a Cap'n Proto message");
}

// Many pointers to the same bytes would be many copies of them.
TEST(WireHostile, ListsThatOverlapAreRefused) {
  const std::uint64_t one_row = struct_pointer(1, 3, 0);
  const auto apart = from_wire<storage::Settlement>(
      words_of({struct_pointer(0, 0, 2), list_pointer(1, kEightBytes, 4),
                list_pointer(4, kComposite, 3), 4, 5, 6, 7, one_row, 0, 0, 0}));
  ASSERT_TRUE(apart.ok()) << apart.status().to_string();
  EXPECT_EQ(apart.value().done.size(), 4U);
  EXPECT_EQ(apart.value().refused.size(), 1U);
  expect_corrupt<storage::Settlement>(
      words_of({struct_pointer(0, 0, 2), list_pointer(1, kEightBytes, 4),
                list_pointer(0, kComposite, 3), one_row, 0, 0, 0}),
      "settlement: not a Cap'n Proto message");
}

TEST(WireHostile, PointersInACircleEnd) {
  // Its rows are a list whose row points back at the list, as its cells.
  const Buffer circle = words_of({
      struct_pointer(0, 2, 2), 0, 0, list_pointer(1, kComposite, 5), 0,  // a reply
      struct_pointer(1, 1, 4), 0,                                        // one row
      0, 0, 0, list_pointer(-6, kComposite, 5),                          // its cells
  });
  expect_corrupt<actors::LeaseReply>(circle, "lease reply: not a Cap'n Proto message");
  const Buffer itself = words_of({struct_pointer(-1, 0, 1)});  // the root is its own pointer
  EXPECT_FALSE(from_wire<actors::StartedWorker>(itself).ok());
  const Buffer far = words_of({2});  // a pointer to a pointer, which is itself
  EXPECT_FALSE(from_wire<actors::StartedWorker>(far).ok());
}

TEST(WireHostile, ATextWithoutItsEndIsRefused) {
  const Buffer name =
      words_of({struct_pointer(0, 0, 1), list_pointer(0, kOneByte, 8), 0x4141414141414141});
  expect_corrupt<actors::StartedWorker>(name, "started worker: not a Cap'n Proto message");
}

TEST(WireHostile, AMessageIsNotReadAsAnotherOne) {
  // Some messages have the fields of others. None makes the reader fail in another way.
  const std::vector<WireCase> cases = wire_cases();
  for (const WireCase& example : cases) {
    for (const WireCase& other : cases) {
      const auto read = other.decode(example.body);
      if (!read.ok()) {
        EXPECT_EQ(read.status().code(), Errc::kCorruptData);
        EXPECT_TRUE(read.status().message().starts_with(other.name + ": "));
      }
    }
  }
}

TEST(WireHostile, MoreSegmentsThanWordsAreRefused) {
  std::vector<std::uint64_t> body{std::numeric_limits<std::uint32_t>::max()};
  EXPECT_EQ(from_wire<actors::LogLine>(Buffer::adopt(std::move(body), DType::kU64)).status().code(),
            Errc::kCorruptData);
}

}  // namespace
}  // namespace tidemill::test
