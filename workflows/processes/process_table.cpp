// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/process_table.hpp"

#include <algorithm>
#include <utility>

#include <caf/all.hpp>

#include "workflows/process_limits.hpp"

namespace tidemill::workflows {
namespace {

// What a user asks for, such as "rollout=3".
std::string wanted_text(const std::string& role, std::uint32_t processes) {
  return role + "=" + std::to_string(processes);
}

// Returns how many processes of each role are connected.
std::map<std::string, std::uint32_t> num_connected(const std::vector<ProcessReport>& processes) {
  std::map<std::string, std::uint32_t> connected;
  for (const ProcessReport& process : processes) {
    if (process.link.state == transport::PeerSession::State::kConnected) {
      ++connected[process.role];
    }
  }
  return connected;
}

}  // namespace

void ProcessTable::add_role(const std::string& role, const RoleSize& size) {
  const std::lock_guard lock(mutex_);
  roles_[role] = {size, {}};
}

void ProcessTable::set_group(const std::string& role, const std::weak_ptr<ProcessGroup>& group) {
  const std::lock_guard lock(mutex_);
  roles_.at(role).group = group;
}

void ProcessTable::set_supervisor(const actors::SupervisorActor& supervisor) {
  const std::lock_guard lock(mutex_);
  supervisor_ = supervisor.address();
}

actors::SupervisorActor ProcessTable::supervisor() const {
  const std::lock_guard lock(mutex_);
  return caf::actor_cast<actors::SupervisorActor>(supervisor_);
}

std::uint32_t ProcessTable::processes(const std::string& role) const {
  const std::lock_guard lock(mutex_);
  return roles_.at(role).size.processes;
}

std::vector<ProcessReport> ProcessTable::report() const {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, role] : roles_) {
      groups.push_back(role.group.lock());
    }
  }
  std::vector<ProcessReport> all;
  for (const auto& group : groups) {
    if (group != nullptr) {
      std::vector<ProcessReport> processes = group->report();
      all.insert(all.end(), std::make_move_iterator(processes.begin()),
                 std::make_move_iterator(processes.end()));
    }
  }
  return all;
}

std::map<std::string, RoleSize> ProcessTable::sizes() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, RoleSize> sizes;
  for (const auto& [name, role] : roles_) {
    sizes[name] = role.size;
  }
  return sizes;
}

std::string ProcessTable::summary() const {
  const std::vector<ProcessReport> processes = report();
  std::map<std::string, std::uint32_t> connected = num_connected(processes);
  std::string text;
  for (const auto& [name, size] : sizes()) {
    text += (text.empty() ? "" : ", ") + name + " " + std::to_string(connected[name]) + " of " +
            std::to_string(size.processes) + " connected";
  }
  std::uint32_t restarts = 0;
  for (const ProcessReport& process : processes) {
    restarts += std::max(process.starts, 1U) - 1;
  }
  if (restarts > 0) {
    text += "; " + std::to_string(restarts) + (restarts == 1 ? " restart" : " restarts");
  }
  return text;
}

// Returns the size of a role that may get this many processes.
Result<RoleSize> ProcessTable::size_for(const std::string& role, std::uint32_t processes) const {
  const std::lock_guard lock(mutex_);
  const auto found = roles_.find(role);
  if (found == roles_.end()) {
    std::string roles;
    for (const auto& [name, of] : roles_) {
      roles += (roles.empty() ? "" : ", ") + name;
    }
    return Status(Errc::kNotFound, role + ": this run has no such processes; it has: " + roles +
                                       " (placement.ROLE.processes)");
  }
  const RoleSize& size = found->second.size;
  if (processes < 1 || processes > size.max_processes) {
    return invalid_argument(wanted_text(role, processes) + ": must be from 1 to " +
                            std::to_string(size.max_processes) +
                            (size.limited_by_memory ? ", as the run's memory allows" : ""));
  }
  return size;
}

// Checks that this process has descriptors for all processes that are not connected yet, with
// `processes` of the role.
Status ProcessTable::check_files_for(const std::string& role, std::uint32_t processes) const {
  std::map<std::string, std::uint32_t> connected = num_connected(report());
  std::int64_t files = kFilesOfTheRun;
  std::int64_t more = 0;
  for (const auto& [name, size] : sizes()) {
    const std::int64_t wanted = name == role ? processes : size.processes;
    const std::int64_t missing = std::max<std::int64_t>(wanted - connected[name], 0);
    files += missing * size.files_each;
    more += missing;
  }
  return check_files(files, wanted_text(role, processes) + ": " + std::to_string(more) +
                                " more processes and the run");
}

Result<std::uint32_t> ProcessTable::scale(const std::string& role, std::uint32_t processes) {
  TIDEMILL_ASSIGN_OR_RETURN(const RoleSize size, size_for(role, processes));
  if (processes > size.processes) {
    TIDEMILL_RETURN_IF_ERROR(check_files_for(role, processes));
  }
  std::shared_ptr<ProcessGroup> group;
  actors::SupervisorActor supervisor;
  std::uint32_t before = 0;
  {
    const std::lock_guard lock(mutex_);
    Role& of = roles_.at(role);
    group = of.group.lock();
    supervisor = caf::actor_cast<actors::SupervisorActor>(supervisor_);
    if (group == nullptr || !supervisor) {
      return Status(Errc::kUnavailable, "the run is starting or ending");
    }
    before = std::exchange(of.size.processes, processes);
  }
  group->scale(processes, supervisor);
  return before;
}

}  // namespace tidemill::workflows
