// SPDX-License-Identifier: Apache-2.0
// The memory of a process, as the operating system reports it.
#pragma once

#include <cstdint>
#include <optional>
#include <sys/types.h>

namespace tidemill::workflows {

/// Returns the anonymous memory of the process plus the whole code of the program and its
/// libraries. The code is counted in full because most of its pages are loaded as the program runs.
/// Returns nothing if the system does not report it. Units: bytes.
[[nodiscard]] std::optional<std::int64_t> program_bytes();

/// Returns the address space of this process, and the part of it that is private and writable. Both
/// include memory that is reserved and not used. Return nothing if the system does not report it.
/// Units: bytes.
[[nodiscard]] std::optional<std::int64_t> address_space_bytes();
[[nodiscard]] std::optional<std::int64_t> data_bytes();

/// Returns the memory of the process `pid` that is in RAM now, with what it shares with others.
/// Returns nothing if it has ended or the system does not report it. Units: bytes.
[[nodiscard]] std::optional<std::int64_t> resident_bytes(pid_t pid);

/// Returns the peak memory of this process, or of `pid`, since it executed its program or since its
/// peak was reset. Returns nothing if the process has ended or the system does not report it.
/// Units: bytes.
[[nodiscard]] std::optional<std::int64_t> peak_bytes();
[[nodiscard]] std::optional<std::int64_t> peak_bytes(pid_t pid);

}  // namespace tidemill::workflows
