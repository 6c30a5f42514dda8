// SPDX-License-Identifier: Apache-2.0
// Plain structs as bytes: the format of small records in a checkpoint.
//
// Any type with an `inspect` function can be written. Integers, floats and enumerations are stored
// in little-endian order. Strings and vectors are stored after their length. Buffers are stored
// with their bytes, not only with their identity. The layout has no names and no versions, so the
// owner of an archive writes a version first.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/result.hpp"

namespace tidemill {

static_assert(std::endian::native == std::endian::little, "archives are little-endian");

/// Writes values one after another.
class ArchiveWriter {
public:
  using result_type = void;  // what an `inspect` for this inspector returns

  template <class... Ts>
  void operator()(Ts&... values) {
    (write(values), ...);
  }

  /// Returns the bytes written so far and starts an empty archive.
  [[nodiscard]] std::vector<std::byte> take() { return std::exchange(bytes_, {}); }

private:
  void append(const void* data, std::size_t size);
  void write_size(std::size_t size) {
    const std::uint64_t wide = size;
    append(&wide, sizeof(wide));
  }

  template <class T>
  void write(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      append(&value, sizeof(value));
    } else {
      inspect(*this, value);
    }
  }
  void write(std::string& text) {
    write_size(text.size());
    append(text.data(), text.size());
  }
  template <class T>
  void write(std::vector<T>& values) {
    write_size(values.size());
    for (T& value : values) {
      write(value);
    }
  }
  void write(Buffer& buffer) {
    DType dtype = buffer.identity().dtype;
    write(dtype);
    write_size(buffer.size_bytes());
    append(buffer.bytes().data(), buffer.size_bytes());
  }

  std::vector<std::byte> bytes_;
};

/// Reads values in the order in which they were written. After a failure all later reads fail too,
/// so read everything and then check `finish`. Never reads or allocates beyond the given bytes.
class ArchiveReader {
public:
  using result_type = void;  // what an `inspect` for this inspector returns

  /// Borrows `bytes` until destroyed.
  explicit ArchiveReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class... Ts>
  void operator()(Ts&... values) {
    (read(values), ...);
  }

  /// Checks that every value was read and that no bytes remain.
  /// Errors: `kCorruptData`.
  [[nodiscard]] Status finish() const {
    if (failed_) {
      return corrupt_data("archive ends too early");
    }
    if (!rest_.empty()) {
      return corrupt_data("archive has " + std::to_string(rest_.size()) + " bytes too many");
    }
    return {};
  }

private:
  std::span<const std::byte> take(std::uint64_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const auto head = rest_.first(size);
    rest_ = rest_.subspan(size);
    return head;
  }
  std::uint64_t read_size() {
    std::uint64_t size = 0;
    read(size);
    if (size > rest_.size()) {  // every element takes at least one byte
      failed_ = true;
    }
    return failed_ ? 0 : size;
  }

  template <class T>
  void read(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      const auto bytes = take(sizeof(value));
      if (!bytes.empty()) {
        std::memcpy(&value, bytes.data(), sizeof(value));
      }
    } else {
      inspect(*this, value);
    }
  }
  void read(std::string& text) {
    const auto bytes = take(read_size());
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <class T>
  void read(std::vector<T>& values) {
    const std::uint64_t size = read_size();
    values.clear();
    for (std::uint64_t i = 0; i < size && !failed_; ++i) {
      read(values.emplace_back());
    }
  }
  void read(Buffer& buffer) {
    DType dtype = DType::kU8;
    read(dtype);
    const auto bytes = take(read_size());
    if (dtype > kLastDType) {
      failed_ = true;
    } else if (!failed_) {
      buffer = Buffer::copy_of(bytes, dtype);
    }
  }

  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace tidemill
