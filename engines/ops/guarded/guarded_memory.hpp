// SPDX-License-Identifier: Apache-2.0
// Memory that is mapped twice: once for the backend, and once, without access, as the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/files/unique_fd.hpp"
#include "engines/ops/host/host_memory.hpp"

namespace tidemill::engines::host {

/// An arena in one file in memory. Addresses belong to a mapping without access, pointers to a
/// mapping with access. The content of a new block is NaN in every float type, except after its
/// first 16 MiB and in sparse blocks.
class GuardedMemory final : public HostMemory {
public:
  /// Reserves `limit_bytes`.
  /// Errors: `kResourceExhausted` if the system refuses the memory.
  [[nodiscard]] static Result<std::unique_ptr<GuardedMemory>> create(std::int64_t limit_bytes);
  ~GuardedMemory() override;
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

private:
  explicit GuardedMemory(std::int64_t limit_bytes) noexcept : HostMemory(limit_bytes) {}
  bool grow(std::int64_t /*bytes*/) override { return false; }
  void advise(std::byte* /*pages*/, std::int64_t /*bytes*/, BlockUse /*use*/) noexcept override {}
  void prepare(std::byte* block, std::int64_t bytes, BlockUse use) noexcept override;
  void discard(std::byte* pages, std::int64_t bytes) noexcept override;

  UniqueFd file_;
  std::byte* host_ = nullptr;    // with access
  std::byte* device_ = nullptr;  // without
  std::int64_t size_bytes_ = 0;  // of each mapping
};

}  // namespace tidemill::engines::host
