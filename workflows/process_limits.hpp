// SPDX-License-Identifier: Apache-2.0
// The limits that the system sets for this process: memory, threads and files.
#pragma once

#include <cstddef>
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

/// An upper limit on memory, and its cause. By default, there is no limit. Units: bytes.
struct MemoryLimit {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  /// What sets the limit, such as "ulimit -v" or the path of a file. Empty for the machine and for
  /// `device.memory_bytes`.
  std::string name;
};

/// Returns the smallest memory limit of the process's own control groups and their ancestors, named
/// after the file that sets it. Returns no limit if none is set or can be read.
///
/// Version 2 stores the limit in `memory.max`, version 1 in `memory.limit_in_bytes` of the
/// controller `memory`.
/// Source: cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
[[nodiscard]] MemoryLimit group_memory_limit(const ControlGroupFiles& files);

/// One of the limits `ulimit -v` (address space) and `ulimit -d` (data), and what counts toward it.
/// Both limits count memory when it is reserved, even if it is never used, such as the stacks of
/// threads. Units: bytes.
struct ReservedMemory {
  std::optional<std::int64_t> limit;
  std::int64_t reserved = 0;      // by the process so far
  std::int64_t program = 0;       // the part of `reserved` that a memory plan counts
  std::int64_t later_stacks = 0;  // of the threads that will still start
};

/// Returns the size of the largest memory plan with which the process stays within the limit, or 0
/// if there is none. Returns nothing if there is no limit. Units: bytes.
[[nodiscard]] std::optional<std::int64_t> plan_limit(const ReservedMemory& memory);

/// Returns the smallest of the machine's memory and the limits of this process: those of its
/// control groups, `ulimit -v` and `ulimit -d`. `threads` is the number of threads that the process
/// will still start.
[[nodiscard]] MemoryLimit process_memory_limit(int threads);

/// Which limits a message is about.
enum class LimitKinds : std::uint8_t { kMemory, kMemoryAndThreads };

/// Returns the limits of this process, for messages: " (ulimit -v 97.7 MiB, ulimit -u 30)", or an
/// empty string if there are none.
[[nodiscard]] std::string limits_text(LimitKinds kinds);

/// Returns `status` with `limits_text` appended to its message if the system has refused memory, a
/// thread or a process (`kResourceExhausted`), otherwise unchanged.
[[nodiscard]] Status with_limits(const Status& status);

/// Starts a port for the blocking work of a run's actors (actors/work/work_port.hpp). `name` names
/// its thread.
/// Errors: `kResourceExhausted`, naming the limits, if the thread cannot be started.
[[nodiscard]] Result<std::unique_ptr<actors::WorkPort>> start_port(
    const std::string& name, actors::PortPriority priority = actors::PortPriority::kNormal);

/// The number of threads that an actor system starts: two of them for clocks (deadline_clock.hpp),
/// and one that ends at once.
inline constexpr int kActorSystemThreads = 5;

/// Checks that this process can start `threads` more threads now, by starting and ending them. A
/// caller checks this before it starts a library that would end the process if it could not start
/// its own threads.
/// Errors: `kResourceExhausted` naming the limits that may be the cause.
[[nodiscard]] Status check_threads(int threads);

/// Raises the limit on open files, within its hard limit, so that this process can open `files`
/// more at one time. Does nothing if it can, or if the system refuses.
void allow_files(std::int64_t files);

/// Checks that this process can open `files` more files at one time. `user` begins the message and
/// names what needs them, such as "50 processes".
/// Errors: `kResourceExhausted` naming the number that is left, and `ulimit -n`.
[[nodiscard]] Status check_files(std::int64_t files, const std::string& user);

/// Returns how many connections the process can have open beside its files, by `ulimit -n`.
[[nodiscard]] std::size_t connections_within_limits();

}  // namespace tidemill::workflows
