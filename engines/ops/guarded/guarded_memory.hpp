// SPDX-License-Identifier: Apache-2.0
// Memory that is mapped twice: once for the backend, and once, without access, as the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/files/unique_fd.hpp"
#include "engines/ops/host/host_memory.hpp"

namespace tidemill::engines::host {

/// Allocates blocks from one file in memory. Addresses belong to a mapping without access, pointers
/// to a mapping with access. The content of a new block is NaN in every float type, unless the
/// block is sparse.
class GuardedMemory final : public HostMemory {
public:
  /// Reserves `limit_bytes`.
  /// Errors: `kResourceExhausted` if the system refuses the memory.
  [[nodiscard]] static Result<std::unique_ptr<GuardedMemory>> create(std::int64_t limit_bytes);
  ~GuardedMemory() override;
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  [[nodiscard]] Result<DeviceBlock> allocate(std::int64_t bytes, BlockUse use) override;

private:
  GuardedMemory() = default;
  void release(DeviceAddress address, std::int64_t bytes) noexcept override;

  UniqueFd file_;
  std::byte* host_ = nullptr;    // with access
  std::byte* device_ = nullptr;  // without
  std::int64_t limit_bytes_ = 0;
  std::map<std::int64_t, std::int64_t> free_;  // sizes of the free ranges, by offset
};

}  // namespace tidemill::engines::host
