// SPDX-License-Identifier: Apache-2.0
#include "transport/envelope.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>
#include <kj/io.h>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "transport/wire/envelope.capnp.h"

namespace tidemill::transport {
namespace {

constexpr std::size_t kWordBytes = sizeof(capnp::word);
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);
// An envelope has one level of pointers.
constexpr int kMaxNesting = 4;

Status malformed(const std::string& what) {
  return corrupt_data("envelope: " + what);
}

std::array<std::byte, kChecksumBytes> checksum(std::span<const std::byte> message) {
  const std::uint64_t value = digest_key(message).low;
  std::array<std::byte, kChecksumBytes> bytes;
  for (std::size_t i = 0; i < kChecksumBytes; ++i) {
    bytes[i] = static_cast<std::byte>(value >> (8 * i));
  }
  return bytes;
}

// Returns the frame, or a copy of it that is aligned to words.
Buffer aligned(const Buffer& frame) {
  const auto address = reinterpret_cast<std::uintptr_t>(frame.bytes().data());
  return address % kWordBytes == 0 ? frame : Buffer::copy_of(frame.bytes());
}

// Reads the message after the checksum of `frame`, which consists of whole aligned words. Throws
// what Cap'n Proto throws.
Result<Envelope> parse(const Buffer& frame) {
  const std::span<const std::byte> bytes = frame.bytes().subspan(kChecksumBytes);
  const kj::ArrayPtr<const capnp::word> words(reinterpret_cast<const capnp::word*>(bytes.data()),
                                              bytes.size() / kWordBytes);
  capnp::ReaderOptions limits;
  limits.traversalLimitInWords = words.size();
  limits.nestingLimit = kMaxNesting;
  capnp::FlatArrayMessageReader message(words, limits);
  if (message.getEnd() != words.end()) {
    return malformed("bytes after the end of the message");
  }
  const wire::Envelope::Reader in = message.getRoot<wire::Envelope>();
  if (in.getVersion() != kEnvelopeVersion) {
    return Status{Errc::kUnimplemented,
                  "envelope: the sender wrote version " + std::to_string(in.getVersion()) +
                      ", this program reads version " + std::to_string(kEnvelopeVersion)};
  }
  if (in.getDeadlineNs() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return malformed("deadline_ns " + std::to_string(in.getDeadlineNs()) + " is out of range");
  }
  Envelope out;
  out.run = in.getRun();
  out.incarnation = in.getIncarnation();
  out.sender = in.getSender();
  out.kind = in.getKind();
  out.sequence = in.getSequence();
  out.reply_to = in.getReplyTo();
  out.acknowledged = in.getAcknowledged();
  out.credit = in.getCredit();
  out.deadline = Duration(static_cast<std::int64_t>(in.getDeadlineNs()));
  const capnp::Data::Reader body = in.getBody();
  // A small body would keep the memory of a large frame.
  if (frame.size_bytes() - body.size() > kMaxHeaderBytes) {
    return malformed(std::to_string(frame.size_bytes() - body.size()) +
                     " bytes besides the body, at most " + std::to_string(kMaxHeaderBytes) +
                     " are allowed");
  }
  if (body.size() > kMaxBodyBytes) {
    return malformed("a body of " + std::to_string(body.size()) + " bytes, at most " +
                     std::to_string(kMaxBodyBytes) + " are allowed");
  }
  if (body.size() > 0) {
    const auto offset = reinterpret_cast<const std::byte*>(body.begin()) - frame.bytes().data();
    out.body = frame.slice(static_cast<std::size_t>(offset), body.size(), DType::kU8);
  }
  return out;
}

}  // namespace

Result<std::vector<std::byte>> write_envelope(const Envelope& envelope) {
  TIDEMILL_CHECK(envelope.deadline >= Duration::zero()) << envelope.deadline.count();
  const std::span<const std::byte> body = envelope.body.bytes();
  if (body.size() > kMaxBodyBytes) {
    return invalid_argument("envelope: a body of " + std::to_string(body.size()) +
                            " bytes is too large for one message (at most " +
                            std::to_string(kMaxBodyBytes) + ")");
  }
  const std::size_t words = (body.size() + kMaxHeaderBytes) / kWordBytes;
  capnp::MallocMessageBuilder message(static_cast<kj::uint>(words));
  wire::Envelope::Builder out = message.initRoot<wire::Envelope>();
  out.setVersion(kEnvelopeVersion);
  out.setRun(envelope.run);
  out.setIncarnation(envelope.incarnation);
  out.setSender(envelope.sender);
  out.setKind(envelope.kind);
  out.setSequence(envelope.sequence);
  out.setReplyTo(envelope.reply_to);
  out.setAcknowledged(envelope.acknowledged);
  out.setCredit(envelope.credit);
  out.setDeadlineNs(static_cast<std::uint64_t>(envelope.deadline.count()));
  if (!body.empty()) {
    out.setBody({reinterpret_cast<const kj::byte*>(body.data()), body.size()});
  }
  std::vector<std::byte> frame(kChecksumBytes +
                               capnp::computeSerializedSizeInWords(message) * kWordBytes);
  kj::ArrayOutputStream stream(
      {reinterpret_cast<kj::byte*>(frame.data()) + kChecksumBytes, frame.size() - kChecksumBytes});
  capnp::writeMessage(stream, message);
  std::ranges::copy(checksum(std::span(frame).subspan(kChecksumBytes)), frame.begin());
  return frame;
}

Result<Envelope> read_envelope(const Buffer& frame) {
  const std::size_t size = frame.size_bytes();
  if (size > kMaxEnvelopeBytes) {
    return malformed(std::to_string(size) + " bytes, at most " + std::to_string(kMaxEnvelopeBytes) +
                     " are allowed");
  }
  if (size <= kChecksumBytes || size % kWordBytes != 0) {
    return malformed("a frame of " + std::to_string(size) + " bytes is no whole number of words");
  }
  const std::span<const std::byte> bytes = frame.bytes();
  if (!std::ranges::equal(checksum(bytes.subspan(kChecksumBytes)), bytes.first(kChecksumBytes))) {
    return malformed("the checksum is wrong");
  }
  const Buffer words = aligned(frame);
  try {
    return parse(words);
  } catch (const kj::Exception&) {
    // The text of the exception names a line of Cap'n Proto's source, which helps no reader.
    return malformed("not a Cap'n Proto message");
  }
}

}  // namespace tidemill::transport
