// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_ring.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "transport/envelope.hpp"
#include "transport/shm/shm_frames.hpp"

namespace tidemill::transport::shm {
namespace {

// Both sides of a ring in ordinary memory.
struct LocalRing {
  explicit LocalRing(std::size_t size) : bytes(size) {}
  RingCounts counts{};
  std::vector<std::byte> bytes;
  RingWriter writer{counts, bytes};
  RingReader reader{counts, bytes};
};

std::vector<std::byte> random_bytes(RandomStream& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.bits());
  }
  return bytes;
}

TEST(ShmRing, CarriesBytesAroundItsEnd) {
  RandomStream random(1);
  LocalRing ring(kMinRingBytes);
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  while (sent.size() < 50 * kMinRingBytes) {
    const std::size_t wanted = 1 + random.below(kMinRingBytes);
    const auto bytes = random_bytes(random, std::min(wanted, ring.writer.room(wanted).value()));
    ring.writer.write(bytes);
    ring.writer.publish();
    sent.insert(sent.end(), bytes.begin(), bytes.end());
    std::vector<std::byte> out(random.below(ring.reader.available().value() + 1));
    ring.reader.read(out);
    ring.reader.publish();
    received.insert(received.end(), out.begin(), out.end());
    ASSERT_TRUE(std::equal(received.begin(), received.end(), sent.begin()));
  }
  EXPECT_LE(sent.size() - received.size(), kMinRingBytes);
}

TEST(ShmRing, ShowsOnlyWhatIsPublished) {
  LocalRing ring(kMinRingBytes);
  const std::vector<std::byte> bytes(kMinRingBytes);
  ASSERT_EQ(ring.writer.room(1), kMinRingBytes);
  ring.writer.write(bytes);
  EXPECT_EQ(ring.reader.available(), 0U);
  EXPECT_FALSE(ring.reader.has_news());
  ring.writer.publish();
  EXPECT_TRUE(ring.reader.has_news());
  EXPECT_EQ(ring.reader.available(), kMinRingBytes);
  std::vector<std::byte> out(100);
  ring.reader.read(out);
  EXPECT_EQ(ring.writer.room(1), 0U);
  ring.reader.publish();
  EXPECT_EQ(ring.writer.room(1), 100U);
  EXPECT_EQ(ring.reader.known_room(), 100U);
}

TEST(ShmRing, AFrozenReaderSeesNothingNew) {
  LocalRing ring(kMinRingBytes);
  const std::vector<std::byte> bytes(10);
  ring.writer.write(bytes);
  ring.writer.publish();
  ASSERT_TRUE(ring.reader.freeze());
  ring.writer.write(bytes);
  ring.writer.publish();
  std::vector<std::byte> out(10);
  ASSERT_EQ(ring.reader.available(), 10U);
  ring.reader.read(out);
  EXPECT_EQ(ring.reader.available(), 0U);
  EXPECT_FALSE(ring.reader.has_news());
}

TEST(ShmRing, RefusesImpossibleCounts) {
  // Both sides have moved 100 bytes and the writer 50 more.
  for (const std::uint64_t count : {std::uint64_t{99}, 100 + kMinRingBytes + 1, std::uint64_t{0},
                                    ~std::uint64_t{0}, std::uint64_t{1} << 63U}) {
    LocalRing ring(kMinRingBytes);
    std::vector<std::byte> bytes(100);
    ring.writer.write(bytes);
    ring.writer.publish();
    ASSERT_EQ(ring.reader.available(), 100U);
    ring.reader.read(bytes);
    ring.reader.publish();
    ring.counts.written = count;
    EXPECT_EQ(ring.reader.available(), std::nullopt) << count;
    EXPECT_FALSE(ring.reader.freeze()) << count;
  }
  for (const std::uint64_t count : {std::uint64_t{101}, 100 - kMinRingBytes - 1,
                                    ~std::uint64_t{0} - kMinRingBytes, std::uint64_t{1} << 63U}) {
    LocalRing ring(kMinRingBytes);
    const std::vector<std::byte> bytes(100);
    ring.writer.write(bytes);
    ring.counts.read = count;
    EXPECT_EQ(ring.writer.room(kMinRingBytes), std::nullopt) << count;
  }
}

TEST(ShmRing, HasOneOfTheAllowedSizes) {
  for (const std::uint64_t size : {kMinRingBytes, std::size_t{1} << 20U, kMaxRingBytes}) {
    EXPECT_TRUE(is_ring_size(size)) << size;
  }
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{2048}, std::uint64_t{kMinRingBytes + 1},
        std::uint64_t{2 * kMaxRingBytes}, std::uint64_t{1} << 63U, ~std::uint64_t{0}}) {
    EXPECT_FALSE(is_ring_size(size)) << size;
  }
}

// Moves all frames through a ring, in an order of steps from the seed.
void expect_carried(const std::vector<Buffer>& frames, std::uint64_t seed) {
  RandomStream random(seed);
  LocalRing ring(kMinRingBytes);
  FrameReader reader;
  std::vector<Buffer> received;
  std::size_t next = 0;
  OutgoingFrame outgoing{frames[0]};
  while (received.size() < frames.size()) {
    if (next < frames.size() && random.below(2) == 0) {
      const WriteStep step = write_piece(ring.writer, outgoing);
      ASSERT_NE(step, WriteStep::kBrokenCount);
      if (step == WriteStep::kDone && ++next < frames.size()) {
        outgoing = OutgoingFrame{frames[next]};
      }
    } else {
      const ReadStep step = reader.read_piece(ring.reader);
      ASSERT_LE(step, ReadStep::kFrame);
      if (step == ReadStep::kFrame) {
        received.push_back(reader.take());
      }
    }
  }
  EXPECT_EQ(next, frames.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(received[i].bytes(), frames[i].bytes())) << i;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(received[i].bytes().data()) % 8, 0U);
  }
}

TEST(ShmFrames, PassInPiecesOfAnySize) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    RandomStream random(seed, 1);
    std::vector<Buffer> frames;
    for (int i = 0; i < 40; ++i) {
      // Small ones, whose lengths end up at the end of the ring, and ones larger than the ring.
      const std::size_t size = random.below(4) == 0 ? random.below(20'000) : random.below(16);
      frames.push_back(Buffer::adopt(random_bytes(random, size), DType::kU8));
    }
    expect_carried(frames, seed);
  }
}

// Puts a length into the ring and returns what the reader makes of it.
ReadStep step_for(FrameReader& reader, LocalRing& ring, std::uint32_t length) {
  EXPECT_GE(ring.writer.room(kPrefixBytes), kPrefixBytes);
  ring.writer.write(std::as_bytes(std::span(&length, 1)));
  ring.writer.publish();
  return reader.read_piece(ring.reader);
}

TEST(ShmFrames, ALengthBeyondTheLimitIsRefused) {
  for (const std::uint32_t length : {std::uint32_t{kMaxEnvelopeBytes} + 1, 0x80000000U, ~0U}) {
    FrameReader reader;
    LocalRing ring(kMinRingBytes);
    EXPECT_EQ(step_for(reader, ring, length), ReadStep::kTooLarge);
    EXPECT_EQ(reader.size_bytes(), length);
  }
  FrameReader reader;
  LocalRing ring(kMinRingBytes);
  EXPECT_EQ(step_for(reader, ring, kMaxEnvelopeBytes), ReadStep::kPiece);
  EXPECT_EQ(reader.read_piece(ring.reader), ReadStep::kNothing);
}

}  // namespace
}  // namespace tidemill::transport::shm
