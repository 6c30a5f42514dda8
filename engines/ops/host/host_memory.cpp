// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/host/host_memory.hpp"

#include <new>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "engines/ops/host/device_access.hpp"

namespace tidemill::engines::host {

std::byte* HostMemory::pointer(DeviceAddress address) const noexcept {
  if (address.is_null()) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(DeviceAccess::to_number(address) +
                                      static_cast<std::uintptr_t>(shift_));
}

void HostMemory::free(DeviceAddress address, std::int64_t bytes) noexcept {
  if (holds_) {
    freed_.emplace_back(address, bytes);
  } else {
    release(address, bytes);
  }
}

void HostMemory::release_freed() noexcept {
  for (const auto& [address, bytes] : std::exchange(freed_, {})) {
    release(address, bytes);
  }
}

Result<DeviceBlock> HeapMemory::allocate(std::int64_t bytes, BlockUse use) {
  TIDEMILL_CHECK(bytes >= 0) << bytes;
  if (bytes == 0) {
    return DeviceBlock();
  }
  try {
    AlignedBytes block(bytes, use == BlockUse::kSparse ? AlignedBytes::Pages::kSmall
                                                       : AlignedBytes::Pages::kLarge);
    const auto number = reinterpret_cast<std::uintptr_t>(block.data());
    blocks_.emplace(number, std::move(block));
    return make_block(DeviceAccess::from_number(number), bytes);
  } catch (const std::bad_alloc&) {
    return Status(Errc::kResourceExhausted, "memory: the system refuses " + std::to_string(bytes) +
                                                " bytes beside " + std::to_string(used_bytes()));
  }
}

void HeapMemory::release(DeviceAddress address, std::int64_t /*bytes*/) noexcept {
  blocks_.erase(DeviceAccess::to_number(address));
}

}  // namespace tidemill::engines::host
