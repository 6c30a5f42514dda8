// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the CPU backend, kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor/aligned_bytes.hpp"

namespace tidemill::engines::cpu {

/// Holds memory that grows to the largest request and is never released, since fresh pages cost
/// more than the loops that use them. Growing loses the content.
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
