// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes Cap'n Proto messages. Private to this folder.
//
// `write(builder, value)` and `read(reader, value)` translate one type each. Only `decode` catches
// what Cap'n Proto throws.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include "actors/wire/common.capnp.h"
#include "actors/wire/messages.hpp"
#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/tensor/dtype.hpp"

namespace tidemill::actors {

/// Makes a message in one segment if its estimate of the size is not too small. Then the encoded
/// message needs no copy of its content.
class FlatMessage final : public capnp::MessageBuilder {
public:
  /// Estimates that the message has `content_bytes` besides a few structs.
  explicit FlatMessage(std::size_t content_bytes)
      : num_words_(kTableWords + kMinWords + content_bytes / sizeof(capnp::word)),
        words_(new_words(num_words_)) {}

  /// Returns the encoded message. To be called once, at the end.
  [[nodiscard]] Buffer take() {
    const auto segments = getSegmentsForOutput();
    if (segments.size() != 1) {
      const auto copy =
          std::make_shared<const kj::Array<capnp::word>>(capnp::messageToFlatArray(segments));
      return buffer_of(copy, copy->begin(), copy->size());
    }
    // The table of segments: the number of segments less one, and the words of each.
    const std::array<std::uint32_t, 2> table{0, static_cast<std::uint32_t>(segments[0].size())};
    std::memcpy(static_cast<void*>(words_.get()), table.data(), sizeof(table));
    return buffer_of(words_, words_.get(), kTableWords + segments[0].size());
  }

  kj::ArrayPtr<capnp::word> allocateSegment(unsigned min_words) override {
    if (!std::exchange(started_, true) && kTableWords + min_words <= num_words_) {
      return {words_.get() + kTableWords, num_words_ - kTableWords};
    }
    const std::size_t size = std::max<std::size_t>(min_words, num_words_);
    more_.push_back(new_words(size));
    return {more_.back().get(), size};
  }

private:
  using Words = std::shared_ptr<capnp::word>;
  static constexpr std::size_t kTableWords = 1;
  static constexpr std::size_t kMinWords = 1024;

  // Returns words that are zero, as Cap'n Proto requires.
  static Words new_words(std::size_t count) {
    auto* words = static_cast<capnp::word*>(std::calloc(count, sizeof(capnp::word)));
    if (words == nullptr) {
      throw std::bad_alloc();
    }
    return {words, [](capnp::word* memory) { std::free(memory); }};
  }
  static Buffer buffer_of(std::shared_ptr<const void> owner, const capnp::word* words,
                          std::size_t count) {
    return Buffer::wrap(std::move(owner), std::as_bytes(std::span(words, count)), DType::kU8);
  }

  const std::size_t num_words_;
  const Words words_;
  std::vector<Words> more_;  // segments after the first
  bool started_ = false;
};

/// Encodes `value` as a message whose root is a `Schema`. `content_bytes` estimates the bytes of
/// its lists and buffers; a good estimate saves a copy of them.
template <class Schema, class Value>
[[nodiscard]] Buffer encode(const Value& value, std::size_t content_bytes = 0) {
  FlatMessage message(content_bytes);
  write(message.initRoot<Schema>(), value);
  return message.take();
}

/// Decodes a message whose root is a `Schema`. Errors: `kCorruptData` that begins with `name`.
template <class Schema, class Value>
[[nodiscard]] Result<Value> decode(const Buffer& body, const std::string& name) {
  // Levels of pointers: the deepest message has five.
  constexpr int kMaxNesting = 16;
  constexpr std::size_t kWordBytes = sizeof(capnp::word);
  const Buffer aligned = reinterpret_cast<std::uintptr_t>(body.bytes().data()) % kWordBytes == 0
                             ? body
                             : Buffer::copy_of(body.bytes());
  if (body.size_bytes() == 0 || body.size_bytes() % kWordBytes != 0) {
    return corrupt_data(name + ": " + std::to_string(body.size_bytes()) +
                        " bytes are no whole number of words");
  }
  const kj::ArrayPtr<const capnp::word> words(
      reinterpret_cast<const capnp::word*>(aligned.bytes().data()),
      aligned.size_bytes() / kWordBytes);
  try {
    capnp::ReaderOptions limits;
    limits.traversalLimitInWords = words.size();  // `read` reads everything once
    limits.nestingLimit = kMaxNesting;
    capnp::FlatArrayMessageReader message(words, limits);
    if (message.getEnd() != words.end()) {
      return corrupt_data(name + ": bytes after the end of the message");
    }
    Value value;
    const Status status = read(message.getRoot<Schema>(), value);
    if (!status.ok()) {
      return status.with_context(name);
    }
    return value;
  } catch (const kj::Exception&) {
    // The text of the exception names a line of Cap'n Proto's source, which helps no reader.
    return corrupt_data(name + ": not a Cap'n Proto message");
  }
}

/// Reads the number of an enumerator of `Enum`, the last of which is `last`.
template <class Enum>
[[nodiscard]] Status read_enum(std::uint16_t number, Enum last, const char* field, Enum& out) {
  if (number > static_cast<std::uint16_t>(last)) {
    return corrupt_data(std::string(field) + " " + std::to_string(number) + " is unknown");
  }
  out = static_cast<Enum>(number);
  return {};
}

/// The longest duration of a message. A clock holds the time so far in the future.
inline constexpr Duration kLongestDuration = std::chrono::hours(24 * 365);

/// Writes a duration, or the nearest one that a message may have.
[[nodiscard]] inline std::uint64_t write_duration(Duration duration) {
  return static_cast<std::uint64_t>(
      std::clamp(duration, Duration::zero(), kLongestDuration).count());
}
[[nodiscard]] inline Status read_duration(std::uint64_t nanoseconds, const char* field,
                                          Duration& out) {
  if (nanoseconds > static_cast<std::uint64_t>(kLongestDuration.count())) {
    return corrupt_data(std::string(field) + " " + std::to_string(nanoseconds) +
                        " is out of range");
  }
  out = Duration(static_cast<std::int64_t>(nanoseconds));
  return {};
}

/// Returns the whole text. Cap'n Proto would take a string until its first NUL.
[[nodiscard]] inline capnp::Text::Reader text_of(const std::string& text) {
  return {text.c_str(), text.size()};
}
[[nodiscard]] inline std::string read_text(capnp::Text::Reader text) {
  return {text.begin(), text.size()};
}

/// Writes a list with `write` of each element. `init` makes the list of a size.
template <class Values, class Init>
void write_list(const Values& values, Init init) {
  auto list = init(static_cast<unsigned>(values.size()));
  unsigned index = 0;
  for (const auto& value : values) {
    write(list[index++], value);
  }
}
/// Reads a list with `read` of each element. The elements have to be structs: Cap'n Proto would
/// also read a list of bytes, as structs that take a hundred times its memory.
template <class List, class Value>
[[nodiscard]] Status read_list(List list, std::vector<Value>& out) {
  if (list.size() > 0 &&
      capnp::AnyList::Reader(list).getElementSize() != capnp::ElementSize::INLINE_COMPOSITE) {
    return corrupt_data("a list of " + std::to_string(list.size()) +
                        " elements that are no structs");
  }
  for (const auto& element : list) {
    TIDEMILL_RETURN_IF_ERROR(read(element, out.emplace_back()));
  }
  return {};
}

[[nodiscard]] inline Status read_status(std::uint16_t code, const std::string& message,
                                        Status& out) {
  Errc errc{};
  TIDEMILL_RETURN_IF_ERROR(read_enum(code, Errc::kInternal, "code", errc));
  if (errc_name(errc) == "unknown") {
    return corrupt_data("code " + std::to_string(code) + " is unknown");  // in a gap
  }
  out = errc == Errc::kOk ? Status() : Status(errc, message);
  return {};
}

namespace wire {

inline void write(BufferIdentity::Builder out, const tidemill::BufferIdentity& identity) {
  out.setPool(identity.pool);
  out.setSegment(identity.segment);
  out.setGeneration(identity.generation);
  out.setOffset(identity.offset);
  out.setLength(identity.length);
}
[[nodiscard]] inline tidemill::BufferIdentity read_identity(BufferIdentity::Reader in,
                                                            DType dtype) {
  return {in.getPool(), in.getSegment(), in.getGeneration(), in.getOffset(), in.getLength(), dtype};
}
/// Returns whether a segment can contain the buffer.
[[nodiscard]] inline bool can_exist(const tidemill::BufferIdentity& identity) {
  return identity.offset <= std::numeric_limits<std::uint64_t>::max() - identity.length;
}

inline void write(SegmentAddress::Builder out, const actors::SegmentAddress& address) {
  out.setSocket(text_of(address.socket));
  out.setReader(address.reader);
  out.setToken({reinterpret_cast<const kj::byte*>(address.token.data()), address.token.size()});
}
[[nodiscard]] inline Status read(SegmentAddress::Reader in, actors::SegmentAddress& address) {
  address.socket = read_text(in.getSocket());
  address.reader = in.getReader();
  const capnp::Data::Reader token = in.getToken();
  if (token.size() != address.token.size()) {
    return corrupt_data("a token of " + std::to_string(token.size()) + " bytes");
  }
  std::memcpy(address.token.data(), token.begin(), token.size());
  return {};
}

inline void write(Bytes::Builder out, const Buffer& buffer) {
  out.setDtype(static_cast<std::uint16_t>(buffer.identity().dtype));
  const auto bytes = buffer.bytes();
  out.setData({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
}
/// Copies the bytes, so that a cell does not keep the memory of a whole frame.
[[nodiscard]] inline Status read(Bytes::Reader in, Buffer& out) {
  DType dtype{};
  TIDEMILL_RETURN_IF_ERROR(read_enum(in.getDtype(), kLastDType, "dtype", dtype));
  const capnp::Data::Reader data = in.getData();
  out = Buffer::copy_of(std::as_bytes(std::span<const unsigned char>(data.begin(), data.size())),
                        dtype);
  return {};
}

}  // namespace wire
}  // namespace tidemill::actors
