// SPDX-License-Identifier: Apache-2.0
// Memory for what is computed with: weights, activations, keys and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tidemill {

/// Bytes that begin on a cache line, uninitialised; throws `std::bad_alloc` where memory ends, as
/// `new` does. From two MiB on they are pages of their own, which the system has back as soon as
/// they are let go.
class AlignedBytes {
public:
  /// The pages of two MiB or more. Large ones begin on a large page and ask the system for such
  /// pages: fewer faults when first touched, fewer address translations ever after; but a large
  /// page is taken whole. Small ones suit memory of which parts are never touched.
  enum class Pages : std::uint8_t { kLarge, kSmall };

  AlignedBytes() = default;
  explicit AlignedBytes(std::int64_t size, Pages pages = Pages::kLarge);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  /// Returns the memory as elements, of which `size() / sizeof(T)` fit.
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_.get());
  }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

private:
  struct Release {
    Release() noexcept = default;
    explicit Release(void* start) noexcept : heap(start) {}
    explicit Release(std::size_t bytes) noexcept : mapped(bytes) {}

    void* heap{};          // what the bytes were cut from, or null
    std::size_t mapped{};  // bytes
    void operator()(std::byte* bytes) const noexcept;
  };
  std::unique_ptr<std::byte, Release> data_;
  std::int64_t size_ = 0;
};

}  // namespace tidemill
