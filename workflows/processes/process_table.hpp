// SPDX-License-Identifier: Apache-2.0
// The processes of a run, for display: what they do, and how many of them there are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <caf/actor_addr.hpp>

#include "actors/supervisor/spawn.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "transport/peer_link.hpp"
#include "workflows/processes/core_plan.hpp"

namespace tidemill::workflows {

/// The descriptors that a run keeps free for its own files, for the segments of rows, and for what
/// ZeroMQ opens besides connections.
inline constexpr std::int64_t kFilesOfTheRun = 128;
/// The descriptors that a run needs for each of its processes: a pidfd, a pipe for its output, a
/// connection, the connection that replaces it, and a socket for the memory of rows.
inline constexpr std::int64_t kFilesPerProcess = 5;
/// The same for a process with a device, which has another connection, for weights.
inline constexpr std::int64_t kFilesPerDevice = kFilesPerProcess + 1;

/// The size of a role.
struct RoleSize {
  std::uint32_t processes = 0;                 // which the run has or should have
  std::uint32_t max_processes = 0;             // at most kMax...Processes, less if memory is short
  std::int64_t files_each = kFilesPerProcess;  // descriptors that the run needs for each of them
  bool limited_by_memory = false;              // whether memory, not the constant, sets the maximum
};

/// A worker process of a run.
struct ProcessReport {
  std::string name;  // such as "rollout process 0"
  std::string role;
  int pid = 0;               // 0: it does not run
  std::uint32_t starts = 0;  // how often it was started
  std::string transport;     // such as "shm"
  std::string reason;        // why that one
  CoreList cores;            // empty: none of its own
  std::uint32_t workers = 0;
  transport::PeerLinkStatus link;
  std::uint64_t queued_bytes = 0;  // of messages to it that wait for credit
  std::uint32_t waiting_workers = 0;
  std::string waiting_for;  // what its workers have waited for longest; empty: nothing
  Duration waiting{0};      // how long
};

/// The processes of one role.
///
/// Threads: safe to call concurrently.
class ProcessGroup {
public:
  ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  virtual ~ProcessGroup() = default;

  [[nodiscard]] virtual std::vector<ProcessReport> report() = 0;
  /// Has the supervisor of the run add workers in new processes, or drain those of the last ones,
  /// which end with their last worker. Does not wait.
  virtual void scale(std::uint32_t processes, const actors::SupervisorActor& supervisor) = 0;
};

/// The processes of a run. Outlives the run.
///
/// Threads: safe to call concurrently.
class ProcessTable {
public:
  /// Lets the run have processes of a role, up to `max_processes`.
  void add_role(const std::string& role, const RoleSize& size);
  /// Sets the group of the role, replacing that of the previous incarnation.
  void set_group(const std::string& role, const std::weak_ptr<ProcessGroup>& group);
  /// Sets the supervisor. Holds no reference to it.
  void set_supervisor(const actors::SupervisorActor& supervisor);

  /// Returns the supervisor, or null if the run has ended.
  [[nodiscard]] actors::SupervisorActor supervisor() const;
  /// Returns how many processes of the role the run has or should have.
  [[nodiscard]] std::uint32_t processes(const std::string& role) const;
  [[nodiscard]] std::vector<ProcessReport> report() const;
  /// Returns how many processes of each role are connected, such as "reward 1 of 2 connected,
  /// rollout 2 of 2 connected; 1 restart", with the restarts in the present incarnation. Empty: the
  /// run has no processes.
  [[nodiscard]] std::string summary() const;
  /// Changes the number of processes of a role, also for later incarnations. Returns the number
  /// before. Does not wait until they run or have ended.
  /// Errors: `kNotFound` if the run has no processes of the role; `kInvalidArgument` for a number
  /// out of range; `kResourceExhausted` if this process has too few descriptors for more of them;
  /// `kUnavailable` while the run is starting or ending.
  [[nodiscard]] Result<std::uint32_t> scale(const std::string& role, std::uint32_t processes);

private:
  struct Role {
    RoleSize size;
    std::weak_ptr<ProcessGroup> group;
  };

  [[nodiscard]] std::map<std::string, RoleSize> sizes() const;
  [[nodiscard]] Result<RoleSize> size_for(const std::string& role, std::uint32_t processes) const;
  [[nodiscard]] Status check_files_for(const std::string& role, std::uint32_t processes) const;

  mutable std::mutex mutex_;  // of all below
  std::map<std::string, Role> roles_;
  caf::actor_addr supervisor_;
};

}  // namespace tidemill::workflows
