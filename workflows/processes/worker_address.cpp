// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/worker_address.hpp"

#include <csignal>
#include <sys/prctl.h>
#include <unistd.h>

#include "workflows/processes/core_plan.hpp"

namespace tidemill::workflows {

bool is_of_this_process(const WorkerProcessAddress& address) {
  return address.transport == "loopback";
}

std::vector<std::string> arguments_of(const WorkerProcessAddress& address) {
  std::vector<std::string> arguments{"--transport",   address.transport,
                                     "--socket",      address.socket,
                                     "--run",         std::to_string(address.run),
                                     "--incarnation", std::to_string(address.incarnation),
                                     "--process",     std::to_string(address.process),
                                     "--owner",       std::to_string(address.owner)};
  if (!address.cores.empty()) {
    arguments.insert(arguments.end(), {"--cores", to_text(address.cores)});
  }
  return arguments;
}

bool begin_worker_process(int parent) {
  sigset_t end_signal;
  ::sigemptyset(&end_signal);
  ::sigaddset(&end_signal, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &end_signal, nullptr);
  return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == parent;
}

}  // namespace tidemill::workflows
