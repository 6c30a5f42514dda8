// SPDX-License-Identifier: Apache-2.0
// The limits that the system sets for this process: memory and threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "actors/work/work_port.hpp"
#include "base/control_groups.hpp"
#include "base/result.hpp"

namespace tidemill::workflows {

/// How much memory something may use. Units: bytes.
struct MemoryLimit {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  /// What sets the limit, such as "ulimit -v" or the path of a file. Empty for the machine and for
  /// `device.memory_bytes`.
  std::string name;
};

/// Returns the smallest memory limit of the process's own control groups and their ancestors, named
/// by its file. The result is the default if no limit is set or can be read.
///
/// Version 2 stores the limit in `memory.max`, version 1 in `memory.limit_in_bytes` of the
/// controller `memory`.
/// Source: cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
[[nodiscard]] MemoryLimit group_memory_limit(const ControlGroupFiles& files);

/// The limit `ulimit -v` (address space) or `ulimit -d` (data), and what counts toward it. Both
/// also count memory that is reserved but not used, such as the stacks of threads.
struct ReservedMemory {
  std::optional<std::int64_t> limit;
  std::int64_t reserved = 0;      // by the process so far
  std::int64_t program = 0;       // the part of `reserved` that a memory plan counts
  std::int64_t later_stacks = 0;  // of the threads that are yet to start
};

/// Returns the largest memory plan with which the process stays within the limit; at least 0.
/// Returns nothing if there is no limit.
[[nodiscard]] std::optional<std::int64_t> plan_limit(const ReservedMemory& memory);

/// Returns the smallest of the machine's memory and the limits of this process: its control groups,
/// `ulimit -v` and `ulimit -d`. `threads` is the number of threads that the process is yet to
/// start.
[[nodiscard]] MemoryLimit process_memory_limit(int threads);

/// Which limits a message is about.
enum class LimitKinds : std::uint8_t { kMemory, kMemoryAndThreads };

/// Returns the limits of this process, for messages: " (ulimit -v 97.7 MiB, ulimit -u 30)", or an
/// empty string if there are none.
[[nodiscard]] std::string limits_text(LimitKinds kinds);

/// Returns `status` with `limits_text` appended to its message if the system has refused memory, a
/// thread or a process (`kResourceExhausted`), otherwise unchanged.
[[nodiscard]] Status with_limits(const Status& status);

/// Starts a port of a run (actors/work/work_port.hpp).
/// Errors: `kResourceExhausted` if its thread cannot be started, naming the limits.
[[nodiscard]] Result<std::unique_ptr<actors::WorkPort>> start_port(const std::string& name);

/// The threads that an actor system starts.
inline constexpr int kActorSystemThreads = 3;

/// Checks that this process can start `threads` more threads now, by starting and ending them.
/// Needed because a library that cannot start its own threads ends the process.
/// Errors: `kResourceExhausted` naming the limits that may be the cause.
[[nodiscard]] Status check_threads(int threads);

}  // namespace tidemill::workflows
