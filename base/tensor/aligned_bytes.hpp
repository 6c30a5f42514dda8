// SPDX-License-Identifier: Apache-2.0
// Aligned memory for numerical data: weights, activations, keys and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tidemill {

/// Owns uninitialized bytes that start on a cache line. Throws `std::bad_alloc` if memory runs out,
/// as `new` does. A block of 2 MiB or more is a mapping of its own, which goes back to the system
/// as soon as it is freed.
class AlignedBytes {
public:
  /// The pages of a block of 2 MiB or more. `kLarge` starts the block on a large page and asks the
  /// system for large pages: fewer page faults on first touch and fewer address translations
  /// afterwards, but each large page is committed as a whole. `kSmall` suits memory of which some
  /// parts are never touched.
  enum class Pages : std::uint8_t { kLarge, kSmall };

  AlignedBytes() = default;
  explicit AlignedBytes(std::int64_t size, Pages pages = Pages::kLarge);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  /// Returns the memory as an array of `size() / sizeof(T)` elements.
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

    void* heap{};          // the allocation that holds the bytes; null if they are mapped
    std::size_t mapped{};  // the size of the mapping in bytes; 0 if they are on the heap
    void operator()(std::byte* bytes) const noexcept;
  };
  std::unique_ptr<std::byte, Release> data_;
  std::int64_t size_ = 0;
};

}  // namespace tidemill
