// SPDX-License-Identifier: Apache-2.0
// Memory for the intermediate results of one call of a bypass.
#pragma once

#include <cstdint>
#include <utility>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// A matrix of undefined content that lives for one call. It is as wide as a rank, or, for adapters
/// that scale a whole layer, as wide as the layer. Objects must be destroyed in the opposite order
/// of their construction. The memory is a part of `Ops::scratch` or, if too little is reserved
/// there (`scratch_bytes`), a block of its own.
class ScratchRows {
public:
  ScratchRows() = default;
  ScratchRows(std::int64_t rows, std::int64_t cols, Ops& ops)
      : bytes_(rows * cols * std::int64_t{sizeof(float)}),
        view_{ops.scratch().push(bytes_), rows, cols, cols} {
    if (!view_.is_null()) {
      stack_ = &ops.scratch();
    } else if (bytes_ > 0) {
      own_ = ops.memory().allocate(bytes_).value();
      view_.data = own_.address();
    }
  }
  ScratchRows(ScratchRows&& other) noexcept { swap(other); }
  ScratchRows& operator=(ScratchRows&& other) noexcept {
    ScratchRows moved(std::move(other));
    swap(moved);
    return *this;
  }
  ScratchRows(const ScratchRows&) = delete;
  ScratchRows& operator=(const ScratchRows&) = delete;
  ~ScratchRows() {
    if (stack_ != nullptr) {
      stack_->pop(bytes_);
    }
  }

  [[nodiscard]] Matrix view() const noexcept { return view_; }

private:
  void swap(ScratchRows& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(stack_, other.stack_);
    std::swap(own_, other.own_);
    std::swap(view_, other.view_);
  }

  std::int64_t bytes_ = 0;
  ScratchStack* stack_ = nullptr;  // null: the memory is `own_`
  DeviceBlock own_;
  Matrix view_;
};

}  // namespace tidemill::engines
