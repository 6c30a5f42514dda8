// SPDX-License-Identifier: Apache-2.0
// Aligned memory of the CPU backend: packed weights, and scratch that is kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace tidemill::engines::cpu {

/// Bytes that begin on a cache line, uninitialised; many of them begin on a large page, and ask
/// the system for such pages: weights read front to back then cost fewer address translations.
class AlignedBytes {
public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::int64_t size);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_ = 0;
};

/// Memory that grows to the largest request and stays, since fresh pages cost more than the loops
/// that use them. What it held is lost when it grows.
class Scratch {
public:
  [[nodiscard]] std::byte* bytes(std::int64_t count) {
    if (count > bytes_.size()) {
      bytes_ = AlignedBytes(count);
    }
    return bytes_.data();
  }
  [[nodiscard]] float* floats(std::int64_t count) {
    return reinterpret_cast<float*>(bytes(count * static_cast<std::int64_t>(sizeof(float))));
  }

private:
  AlignedBytes bytes_;
};

}  // namespace tidemill::engines::cpu
