// SPDX-License-Identifier: Apache-2.0
#include "transport/envelope.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>

#include "tests/transport/framed.hpp"
#include "transport/wire/envelope.capnp.h"

namespace tidemill::transport {
namespace {

Buffer bytes_of(std::string_view text) {
  return Buffer::copy_of(std::as_bytes(std::span(text)));
}

Envelope example() {
  Envelope envelope;
  envelope.run = 0x0123456789ABCDEF;
  envelope.incarnation = 3;
  envelope.sender = 7;
  envelope.kind = 0x1234;
  envelope.sequence = 41;
  envelope.reply_to = 17;
  envelope.acknowledged = 40;
  envelope.credit = std::uint64_t{1} << 40U;
  envelope.deadline = std::chrono::milliseconds(1500);
  envelope.body = bytes_of("the body of a message");
  return envelope;
}

void expect_equal(const Envelope& a, const Envelope& b) {
  EXPECT_EQ(a.run, b.run);
  EXPECT_EQ(a.incarnation, b.incarnation);
  EXPECT_EQ(a.sender, b.sender);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.reply_to, b.reply_to);
  EXPECT_EQ(a.acknowledged, b.acknowledged);
  EXPECT_EQ(a.credit, b.credit);
  EXPECT_EQ(a.deadline, b.deadline);
  EXPECT_TRUE(std::ranges::equal(a.body.bytes(), b.body.bytes()));
}

Buffer written(const Envelope& envelope) {
  Result<std::vector<std::byte>> frame = write_envelope(envelope);
  EXPECT_TRUE(frame.ok()) << frame.status().to_string();
  return Buffer::adopt(std::move(frame).value(), DType::kU8);
}

// Returns the message of a frame.
std::vector<std::byte> message_of(const Buffer& frame) {
  const auto message = frame.bytes().subspan(sizeof(std::uint64_t));
  return {message.begin(), message.end()};
}

// Encodes an envelope that `fill` writes, in segments of `segment_words`.
template <class Fill>
Buffer built(Fill fill, kj::uint segment_words = 1024) {
  capnp::MallocMessageBuilder message(segment_words, capnp::AllocationStrategy::FIXED_SIZE);
  fill(message.initRoot<wire::Envelope>());
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  return framed(std::as_bytes(std::span(words.begin(), words.size())));
}

TEST(Envelope, SurvivesARoundTrip) {
  const Envelope envelope = example();
  const Result<Envelope> read = read_envelope(written(envelope));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  expect_equal(read.value(), envelope);
}

TEST(Envelope, KeepsTheLargestValuesAndAnEmptyBody) {
  Envelope envelope;
  envelope.run = envelope.sequence = envelope.reply_to = envelope.acknowledged = envelope.credit =
      std::numeric_limits<std::uint64_t>::max();
  envelope.incarnation = envelope.sender = std::numeric_limits<std::uint32_t>::max();
  envelope.kind = std::numeric_limits<std::uint16_t>::max();
  envelope.deadline = Duration::max();
  const Result<Envelope> read = read_envelope(written(envelope));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  expect_equal(read.value(), envelope);
}

// Written by this encoding when version 1 was made. A program of any later version must either read
// these bytes or refuse them by their version.
TEST(Envelope, HasTheBytesOfVersion1) {
  constexpr std::string_view kFrame =
      "6c0455007aeda00f"  // checksum
      "000000000d000000"  // one segment of 13 words
      "0000000008000100"  // 8 words of data, 1 pointer
      "0100341203000000"  // version, kind, incarnation
      "efcdab8967452301"  // run
      "0700000000000000"  // sender
      "2900000000000000"  // sequence
      "1100000000000000"  // reply_to
      "2800000000000000"  // acknowledged
      "0000000000010000"  // credit
      "002f685900000000"  // deadline_ns
      "01000000aa000000"  // 21 bytes follow
      "74686520626f6479206f662061206d657373616765000000";
  const Buffer frame = written(example());
  std::string hex;
  for (const std::byte byte : frame.bytes()) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[std::to_integer<std::size_t>(byte >> 4U)];
    hex += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  EXPECT_EQ(hex, kFrame);
  const Result<Envelope> read = read_envelope(frame);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  expect_equal(read.value(), example());
}

TEST(Envelope, TheBodyIsAPartOfTheFrame) {
  const Buffer frame = written(example());
  const Result<Envelope> read = read_envelope(frame);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_GE(read.value().body.bytes().data(), frame.bytes().data());
  EXPECT_LE(read.value().body.bytes().data() + read.value().body.size_bytes(),
            frame.bytes().data() + frame.size_bytes());
}

TEST(Envelope, IsReadFromAFrameThatIsNotAligned) {
  const Buffer frame = written(example());
  std::vector<std::byte> shifted(frame.size_bytes() + 3);
  std::ranges::copy(frame.bytes(), shifted.begin() + 3);
  const Buffer all = Buffer::adopt(std::move(shifted), DType::kU8);
  const Result<Envelope> read = read_envelope(all.slice(3, frame.size_bytes(), DType::kU8));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  expect_equal(read.value(), example());
}

TEST(Envelope, MayConsistOfSeveralSegments) {
  const std::string body(3000, 'b');
  const Buffer frame = built(
      [&](wire::Envelope::Builder out) {
        out.setVersion(kEnvelopeVersion);
        out.setBody({reinterpret_cast<const kj::byte*>(body.data()), body.size()});
      },
      16);
  const Result<Envelope> read = read_envelope(frame);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(std::ranges::equal(read.value().body.bytes(), bytes_of(body).bytes()));
}

TEST(Envelope, OfAnotherVersionIsRefusedWithBothVersions) {
  for (const std::uint16_t version : {std::uint16_t{0}, std::uint16_t{2}, std::uint16_t{65535}}) {
    const Status status = read_envelope(built([&](wire::Envelope::Builder out) {
                            out.setVersion(version);
                          })).status();
    EXPECT_EQ(status.code(), Errc::kUnimplemented);
    EXPECT_EQ(status.message(), "envelope: the sender wrote version " + std::to_string(version) +
                                    ", this program reads version 1");
  }
}

TEST(Envelope, WithADeadlineThatNoDurationHoldsIsRefused) {
  const Status status = read_envelope(built([](wire::Envelope::Builder out) {
                          out.setVersion(kEnvelopeVersion);
                          out.setDeadlineNs(std::uint64_t{1} << 63U);
                        })).status();
  EXPECT_EQ(status.code(), Errc::kCorruptData);
  EXPECT_EQ(status.message(), "envelope: deadline_ns 9223372036854775808 is out of range");
}

TEST(Envelope, ThatIsTooLargeIsNeitherWrittenNorRead) {
  Envelope envelope;
  envelope.body = Buffer::adopt(std::vector<std::byte>(kMaxEnvelopeBytes), DType::kU8);
  const Status status = write_envelope(envelope).status();
  EXPECT_EQ(status.code(), Errc::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "envelope: a body of 16777216 bytes is too large for one message (at most 16776960)");
  envelope.body = envelope.body.slice(0, kMaxBodyBytes, DType::kU8);
  EXPECT_TRUE(read_envelope(written(envelope)).ok());

  const Status read =
      read_envelope(Buffer::adopt(std::vector<std::byte>(kMaxEnvelopeBytes + 8), DType::kU8))
          .status();
  EXPECT_EQ(read.code(), Errc::kCorruptData);
  EXPECT_EQ(read.message(), "envelope: 16777224 bytes, at most 16777216 are allowed");
}

TEST(Envelope, EveryTruncationIsRefused) {
  const Buffer frame = written(example());
  const std::vector<std::byte> message = message_of(frame);
  for (std::size_t size = 0; size < frame.size_bytes(); ++size) {
    EXPECT_EQ(read_envelope(frame.slice(0, size, DType::kU8)).status().code(), Errc::kCorruptData)
        << size;
  }
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_EQ(read_envelope(framed(std::span(message).first(size))).status().message(),
              size % 8 == 0 && size > 0 ? "envelope: not a Cap'n Proto message"
                                        : "envelope: a frame of " + std::to_string(size + 8) +
                                              " bytes is no whole number of words")
        << size;
  }
}

// Otherwise, many small bodies could keep the memory of large frames.
TEST(Envelope, WithManyBytesThatBelongToNoBodyIsRefused) {
  Envelope envelope = example();
  envelope.body = bytes_of(std::string(1000, 'b'));
  std::vector<std::byte> message = message_of(written(envelope));
  constexpr std::size_t kBodyPointer = 80;
  const std::uint64_t pointer = 1U | (std::uint64_t{8U << 3U | 2U} << 32U);  // 8 bytes follow
  std::memcpy(message.data() + kBodyPointer, &pointer, sizeof(pointer));
  EXPECT_EQ(read_envelope(framed(message)).status().message(),
            "envelope: 1088 bytes besides the body, at most 256 are allowed");
}

TEST(Envelope, BytesAfterItsEndAreRefused) {
  const Buffer frame = written(example());
  std::vector<std::byte> longer = message_of(frame);
  longer.resize(longer.size() + 8);
  const Status status = read_envelope(framed(longer)).status();
  EXPECT_EQ(status.code(), Errc::kCorruptData);
  EXPECT_EQ(status.message(), "envelope: bytes after the end of the message");
}

TEST(Envelope, EveryFlippedBitIsRefused) {
  const Buffer frame = written(example());
  for (std::size_t bit = 0; bit < frame.size_bytes() * 8; ++bit) {
    std::vector<std::byte> changed(frame.bytes().begin(), frame.bytes().end());
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    const Status status = read_envelope(Buffer::adopt(std::move(changed), DType::kU8)).status();
    EXPECT_EQ(status.message(), "envelope: the checksum is wrong") << bit;
  }
}

// The sender itself may be broken, and compute the checksum of a bad message. A flipped bit may
// then change a number. It never takes the reader outside the frame, which sanitizers check.
TEST(Envelope, EveryFlippedBitUnderTheRightChecksumIsReadOrRefused) {
  const std::vector<std::byte> message = message_of(written(example()));
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < message.size() * 8; ++bit) {
    std::vector<std::byte> changed = message;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    const Result<Envelope> read = read_envelope(framed(changed));
    if (read.ok()) {
      EXPECT_GE(read.value().deadline, Duration::zero());
      EXPECT_LE(read.value().body.size_bytes(), message.size());
    } else {
      ++refused;
      EXPECT_TRUE(read.status().code() == Errc::kCorruptData ||
                  read.status().code() == Errc::kUnimplemented);
    }
  }
  EXPECT_GT(refused, 100U);
}

// A pointer may name a list of 2^29 - 1 elements, of any size, in a frame of a few words.
TEST(Envelope, ABodyThatIsLongerThanTheFrameOrHasNoBytesIsRefused) {
  const Buffer frame = built([](wire::Envelope::Builder out) {
    out.setVersion(kEnvelopeVersion);
    out.setBody({reinterpret_cast<const kj::byte*>("12345678"), 8});
  });
  for (std::uint64_t element_size = 0; element_size < 8; ++element_size) {
    std::vector<std::byte> changed = message_of(frame);
    // The pointer to the body is the last word before its content.
    const std::size_t at = changed.size() - 16;
    const std::uint64_t pointer = 1U | (element_size << 32U) | (0x1FFFFFFFULL << 35U);
    std::memcpy(changed.data() + at, &pointer, sizeof(pointer));
    EXPECT_EQ(read_envelope(framed(changed)).status().message(),
              "envelope: not a Cap'n Proto message")
        << element_size;
  }
}

}  // namespace
}  // namespace tidemill::transport
