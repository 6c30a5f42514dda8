// SPDX-License-Identifier: Apache-2.0
// Aligned memory of the CPU backend: packed weights, and scratch that is kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace tidemill::engines::cpu {

/// Bytes that begin on a cache line, uninitialised.
class AlignedBytes {
public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::int64_t size)
      : data_(static_cast<std::byte*>(
            ::operator new (static_cast<std::size_t>(size), std::align_val_t{kAlignment}))),
        size_(size) {}

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* bytes) const noexcept {
      ::operator delete (bytes, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_ = 0;
};

/// Memory that grows to the largest request and stays, since fresh pages cost more than the loops
/// that use them. What it held is lost when it grows.
class Scratch {
public:
  [[nodiscard]] float* floats(std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    if (bytes > bytes_.size()) {
      bytes_ = AlignedBytes(bytes);
    }
    return reinterpret_cast<float*>(bytes_.data());
  }

private:
  AlignedBytes bytes_;
};

}  // namespace tidemill::engines::cpu
