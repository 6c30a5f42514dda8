// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/local_processes.hpp"

#include <random>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "transport/shm/shm_connection.hpp"
#include "transport/zmq/zmq_connection.hpp"

namespace tidemill::workflows {
namespace {

// Distinguishes this process of a run from an earlier one, whose processes may still run.
std::uint64_t random_number() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32U) | device();
}

struct ChosenTransport {
  std::string name;
  std::string reason;
};

ChosenTransport choose(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::kShm: return {"shm", "as placement says"};
    case TransportChoice::kZmq: return {"zmq", "as placement says"};
    case TransportChoice::kAuto: break;
  }
  return {"shm", "all processes are on this machine"};
}

}  // namespace

LocalProcesses::LocalProcesses(std::filesystem::path directory, WorkerProgram program,
                               std::function<void(const std::string&)> inform)
    : directory_(std::move(directory)),
      program_(std::move(program)),
      inform_(std::move(inform)),
      run_(random_number()) {}

LocalProcesses::~LocalProcesses() {
  const std::lock_guard lock(mutex_);
  acceptors_.clear();
  std::error_code ignored;
  if (std::filesystem::is_directory(directory_ / "sockets", ignored)) {
    std::filesystem::remove(directory_ / "sockets", ignored);  // unless it has other files
  }
}

Result<WorkerProcessAddress> LocalProcesses::new_address(const std::string& role,
                                                         TransportChoice transport,
                                                         std::uint32_t incarnation) {
  const ChosenTransport chosen = choose(transport);
  const std::filesystem::path folder = std::filesystem::absolute(directory_) / "sockets";
  const std::filesystem::path socket = folder / chosen.name;
  const std::lock_guard lock(mutex_);
  if (!acceptors_.contains(chosen.name)) {
    std::error_code error;
    std::filesystem::create_directory(folder, error);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
    const auto accept = [this](std::unique_ptr<transport::Connection> connection) {
      links().accept(std::move(connection));
    };
    TIDEMILL_ASSIGN_OR_RETURN(acceptors_[chosen.name],
                              chosen.name == "shm"
                                  ? transport::listen_shm(socket, accept)
                                  : transport::listen_zmq("ipc://" + socket.string(), accept));
  }
  if (informed_[role] != chosen.name) {
    informed_[role] = chosen.name;
    inform_(role + " processes: transport " + chosen.name + ", " + chosen.reason);
  }
  return WorkerProcessAddress{chosen.name, socket.string(), run_,
                              incarnation, ++last_process_, ::getpid()};
}

std::uint64_t LocalProcesses::start(const std::string& role, const WorkerProcessAddress& address,
                                    OnExit on_exit) {
  const std::filesystem::path child_log = directory_ / "processes.log";
  ChildProgram child{program_.program, program_.arguments, child_log};
  child.arguments.insert(child.arguments.end(), {"--role", role});
  for (std::string& argument : arguments_of(address)) {
    child.arguments.push_back(std::move(argument));
  }
  return children_.start(std::move(child),
                         [child_log, on_exit = std::move(on_exit)](const std::string& how) {
                           on_exit(how + "; see " + child_log.string());
                         });
}

Result<std::unique_ptr<transport::Connector>> connector_to(const WorkerProcessAddress& address) {
  if (address.transport == "shm") {
    return transport::make_shm_connector(address.socket);
  }
  if (address.transport == "zmq") {
    return transport::new_zmq_connector("ipc://" + address.socket);
  }
  return invalid_argument("--transport: " + address.transport + " is unknown");
}

}  // namespace tidemill::workflows
