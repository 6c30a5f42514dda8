// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer_allocator.hpp"

namespace tidemill {
namespace {

/// Reads an identity into a buffer, as a message from another process does.
struct IdentityReader {
  using result_type = void;
  BufferIdentity identity;
  void operator()(BufferIdentity& x) const { x = identity; }
};

Buffer received(const BufferIdentity& identity, Buffer into = {}) {
  IdentityReader reader{identity};
  inspect(reader, into);
  return into;
}

Buffer bytes_of(const std::string& text) {
  return Buffer::adopt(std::vector<char>(text.begin(), text.end()), DType::kU8);
}

std::string text_of(const Buffer& buffer) {
  const auto chars = buffer.as<char>();
  return {chars.begin(), chars.end()};
}

constexpr BufferIdentity kRemote{7, 12, 3, 16, 4, DType::kU8};

TEST(Buffer, SegmentsOfThisProcessDiffer) {
  const Buffer first = bytes_of("one");
  const Buffer second = bytes_of("two");
  EXPECT_EQ(first.identity().pool, 0U);
  EXPECT_NE(first.identity().segment, second.identity().segment);
  EXPECT_TRUE(first.resolved());
  EXPECT_TRUE(Buffer().resolved());
}

TEST(Buffer, AHandleThatWasReadIsUnresolvedAndCannotBeRead) {
  const Buffer remote = received(kRemote);
  EXPECT_FALSE(remote.resolved());
  EXPECT_EQ(remote.identity(), kRemote);
  EXPECT_EQ(remote.size_bytes(), 4U);
  EXPECT_EQ(remote.read().status().code(), Errc::kNotFound);
  EXPECT_EQ(remote.read().status().message(), "buffer 7.12.3+16, 4 bytes: is not in this process");
  std::vector<std::byte> out(2);
  EXPECT_EQ(remote.copy_to(1, out).code(), Errc::kNotFound);
}

TEST(Buffer, AHandleCanBeMadeFromAnIdentity) {
  const Buffer remote = Buffer::named(kRemote);
  EXPECT_FALSE(remote.resolved());
  EXPECT_EQ(remote.identity(), kRemote);
  EXPECT_EQ(remote.read().status().code(), Errc::kNotFound);
  EXPECT_TRUE(Buffer::named({7, 12, 3, 16, 0, DType::kU8}).resolved()) << "it names no bytes";
}

TEST(BufferDeathTest, TheBytesOfAnUnresolvedHandleAreNeverEmpty) {
  const Buffer remote = received(kRemote);
  EXPECT_DEATH(static_cast<void>(remote.bytes()), "buffer 7.12.3\\+16, 4 bytes is not in this");
  EXPECT_DEATH(static_cast<void>(remote.as<std::uint8_t>()), "is not in this process");
}

TEST(Buffer, APartOfAnUnresolvedHandleIsUnresolved) {
  const Buffer part = received(kRemote).slice(1, 2, DType::kU8);
  EXPECT_FALSE(part.resolved());
  EXPECT_EQ(part.identity(), (BufferIdentity{7, 12, 3, 17, 2, DType::kU8}));
  EXPECT_TRUE(received(kRemote).slice(4, 0, DType::kU8).resolved()) << "it names no bytes";
}

// A handle never has the identity of one buffer and the bytes of another.
TEST(Buffer, ReadingIntoAHandleDropsItsBytes) {
  const Buffer remote = received(kRemote, bytes_of("four"));
  EXPECT_FALSE(remote.resolved());
  const Buffer own = bytes_of("same");
  EXPECT_EQ(text_of(received(own.identity(), own)), "same");
}

TEST(Buffer, ASegmentOfAPoolHasTheIdentityThatThePoolGivesIt) {
  const std::string memory = "shared memory";
  const BufferIdentity identity{9, 2, 5, 0, memory.size(), DType::kU8};
  const Buffer buffer = Buffer::of_pool(nullptr, std::as_bytes(std::span(memory)), identity);
  EXPECT_EQ(buffer.identity(), identity);
  EXPECT_EQ(text_of(buffer), memory);
  EXPECT_EQ(text_of(buffer.slice(7, 6, DType::kU8)), "memory");
}

TEST(Buffer, SeveralBuffersCanShareASegmentOfAPool) {
  const std::string memory = "memory";
  const BufferIdentity identity{9, 2, 5, 100, memory.size(), DType::kU8};
  const Buffer buffer = Buffer::of_pool(nullptr, std::as_bytes(std::span(memory)), identity);
  EXPECT_EQ(text_of(buffer), memory);
  const Buffer part = buffer.slice(3, 3, DType::kU8);
  EXPECT_EQ(part.identity(), (BufferIdentity{9, 2, 5, 103, 3, DType::kU8}));
  EXPECT_EQ(text_of(part), "ory");
}

TEST(BufferDeathTest, TheIdentityOfAPoolIsAsLongAsTheBytes) {
  const std::string memory = "memory";
  const auto bytes = std::as_bytes(std::span(memory));
  EXPECT_DEATH(static_cast<void>(Buffer::of_pool(nullptr, bytes, {9, 2, 5, 0, 5, DType::kU8})),
               "buffer 9.2.5\\+0, 5 bytes");
}

TEST(HeapAllocator, AllocatesAlignedMemoryThatFillWrites) {
  Buffer buffer;
  {
    HeapAllocator heap;
    buffer = heap.allocate(16, DType::kI64,
                           [](std::span<std::byte> out) { std::ranges::fill(out, std::byte{1}); })
                 .value();
  }
  ASSERT_EQ(buffer.as<std::int64_t>().size(), 2U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.bytes().data()) % 64, 0U) << "a cache line";
  EXPECT_EQ(buffer.as<std::int64_t>()[1], 0x0101010101010101);
  EXPECT_EQ(buffer.identity().dtype, DType::kI64);
}

TEST(HeapAllocator, AllocatesMemoryThatIsWrittenLater) {
  HeapAllocator heap;
  UnwrittenBuffer made = heap.allocate_unwritten(3, DType::kU8).value();
  ASSERT_EQ(made.bytes.size(), 3U);
  std::ranges::fill(made.bytes, std::byte{7});
  EXPECT_EQ(made.buffer.bytes().data(), made.bytes.data());
  EXPECT_EQ(made.buffer.as<std::uint8_t>()[2], 7);
}

}  // namespace
}  // namespace tidemill
