// SPDX-License-Identifier: Apache-2.0
// Memory for what is computed with: weights, activations, keys and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace tidemill {

/// Bytes that begin on a cache line, uninitialised; from two MiB on they begin on a large page and
/// ask the system for such pages: fewer faults when first touched, fewer address translations ever
/// after. Throws `std::bad_alloc` where memory ends, as `new` does.
class AlignedBytes {
public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::int64_t size);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  /// Returns the memory as elements, of which `size() / sizeof(T)` fit.
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_.get());
  }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace tidemill
