// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/process_table.hpp"

#include <utility>

#include <caf/all.hpp>

namespace tidemill::workflows {

void ProcessTable::add_role(const std::string& role, std::uint32_t processes,
                            std::uint32_t max_processes) {
  const std::lock_guard lock(mutex_);
  roles_[role] = {processes, max_processes, {}};
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
  return roles_.at(role).processes;
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

Result<std::uint32_t> ProcessTable::scale(const std::string& role, std::uint32_t processes) {
  std::shared_ptr<ProcessGroup> group;
  actors::SupervisorActor supervisor;
  std::uint32_t before = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = roles_.find(role);
    if (found == roles_.end()) {
      return Status(Errc::kNotFound, role + ": this run has no such processes; placement." + role +
                                         ".processes starts a run with some");
    }
    Role& of = found->second;
    if (processes < 1 || processes > of.max_processes) {
      return invalid_argument(role + "=" + std::to_string(processes) + ": must be from 1 to " +
                              std::to_string(of.max_processes) + ", as the run's memory allows");
    }
    group = of.group.lock();
    supervisor = caf::actor_cast<actors::SupervisorActor>(supervisor_);
    if (group == nullptr || !supervisor) {
      return Status(Errc::kUnavailable, "the run is starting or ending");
    }
    before = std::exchange(of.processes, processes);
  }
  group->scale(processes, supervisor);
  return before;
}

}  // namespace tidemill::workflows
