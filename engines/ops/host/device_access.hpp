// SPDX-License-Identifier: Apache-2.0
// Turns addresses of device memory into numbers and back. For backends only: tests/lint checks that
// nothing outside engines/ops includes this file.
#pragma once

#include <cstdint>

#include "engines/ops/matrix.hpp"

namespace tidemill::engines {

/// Converts addresses. What a number means is up to the backend.
struct DeviceAccess {
  [[nodiscard]] static DeviceAddress from_number(std::uintptr_t number) noexcept {
    DeviceAddress address;
    address.value_ = number;
    return address;
  }
  [[nodiscard]] static std::uintptr_t to_number(DeviceAddress address) noexcept {
    return address.value_;
  }
};

}  // namespace tidemill::engines
