// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/local_processes.hpp"

#include <algorithm>
#include <random>
#include <unistd.h>
#include <utility>

#include "base/text/clip.hpp"
#include "transport/loopback/loopback_connection.hpp"
#include "transport/shm/shm_connection.hpp"
#include "transport/zmq/zmq_connection.hpp"
#include "workflows/processes/socket_folder.hpp"

namespace tidemill::workflows {
namespace {

constexpr std::size_t kMaxProcesses = kMaxRolloutProcesses + kMaxRewardProcesses;
static_assert(kMaxProcesses <= transport::kMaxZmqConnections);
static_assert(kMaxProcesses <= transport::kMaxSegmentReaders);

// How much of the last line of a process goes into the message about its end. Units: bytes.
constexpr std::size_t kMaxLastWords = 300;

// Distinguishes this process of a run from an earlier one, whose processes may still run.
std::uint64_t random_number() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32U) | device();
}

transport::ReaderToken random_token() {
  transport::ReaderToken token{};
  std::random_device device;
  for (std::byte& byte : token) {
    byte = static_cast<std::byte>(device());
  }
  return token;
}

transport::SegmentPoolOptions pool_options(std::uint64_t pool, std::int64_t max_bytes,
                                           std::int64_t max_free_bytes) {
  transport::SegmentPoolOptions options;
  options.pool = pool;
  options.max_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(max_bytes, 0));
  options.max_free_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(max_free_bytes, 0));
  return options;
}

// The pools of a run, whose numbers are not 0.
std::uint64_t pool_of_weights(std::uint64_t run) {
  return run | 1U;
}
std::uint64_t pool_of_rows(std::uint64_t run) {
  return pool_of_weights(run) ^ 2U;
}

// Sets the numbers of threads apart from those of child processes.
constexpr std::uint64_t kThreadBit = std::uint64_t{1} << 63U;

struct ChosenTransport {
  std::string name;
  std::string reason;
};

ChosenTransport choose(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::kLoopback: return {"loopback", "as placement says"};
    case TransportChoice::kShm: return {"shm", "as placement says"};
    case TransportChoice::kZmq: return {"zmq", "as placement says"};
    case TransportChoice::kAuto: break;
  }
  return {"shm", "all processes are on this machine"};
}

}  // namespace

Result<LentBuffers> LentMemory::add_reader(const std::filesystem::path& run,
                                           std::uint32_t process) {
  const std::filesystem::path socket = socket_path(std::filesystem::absolute(run), name_);
  if (server_ == nullptr) {
    transport::SegmentServerOptions options;
    options.path = socket;
    options.on_trouble = on_trouble_;
    TIDEMILL_ASSIGN_OR_RETURN(server_, transport::SegmentServer::listen(pool_, std::move(options)));
  }
  transport::SegmentReaderGrant grant;
  grant.reader = process;
  grant.token = random_token();
  grant.max_lent_bytes = pool_.max_bytes();
  if (const Status added = pool_.add_reader(grant); !added.ok()) {
    return Status(added.code(), "too many processes share the " + name_ + " of the run (at most " +
                                    std::to_string(transport::kMaxSegmentReaders) + ")");
  }
  return LentBuffers{actors::make_segment_lender(copies_, grant.reader),
                     {socket.string(), grant.reader, grant.token}};
}

LocalProcesses::LocalProcesses(LocalProcessesOptions options)
    : options_(std::move(options)),
      run_(random_number()),
      // Freed memory of a version is kept for the next one.
      weights_("weights",
               pool_options(pool_of_weights(run_), options_.max_weight_bytes,
                            options_.kept_weight_bytes),
               [this](const Status& why) { trouble_.note(why); }),
      rows_("rows",
            pool_options(pool_of_rows(run_), options_.max_row_bytes, options_.max_row_bytes / 4),
            [this](const Status& why) { trouble_.note(why); }),
      trouble_(clock_, "the run cannot accept its worker processes", options_.warn),
      log_(options_.directory / "processes.log") {
  make_socket_folder(options_.directory);
}

LocalProcesses::~LocalProcesses() {
  const std::lock_guard lock(mutex_);
  acceptors_.clear();
  weights_.close();
  rows_.close();
  remove_socket_folder(options_.directory);
}

Result<WorkerProcessAddress> LocalProcesses::new_address(const std::string& role,
                                                         TransportChoice transport,
                                                         std::uint32_t incarnation) {
  const ChosenTransport chosen = choose(transport);
  const std::filesystem::path socket =
      socket_path(std::filesystem::absolute(options_.directory), chosen.name);
  const std::lock_guard lock(mutex_);
  if (!acceptors_.contains(chosen.name)) {
    TIDEMILL_ASSIGN_OR_RETURN(acceptors_[chosen.name], listen(chosen.name, socket.string()));
  }
  if (informed_[role] != chosen.name) {
    informed_[role] = chosen.name;
    options_.inform(role + " processes: transport " + chosen.name + ", " + chosen.reason);
  }
  WorkerProcessAddress address;
  address.transport = chosen.name;
  address.reason = chosen.reason;
  address.socket = socket.string();
  address.run = run_;
  address.incarnation = incarnation;
  address.process = ++last_process_;
  address.owner = ::getpid();
  return address;
}

Result<std::unique_ptr<transport::Acceptor>> LocalProcesses::listen(const std::string& transport,
                                                                    const std::string& socket) {
  const auto accept = [this](std::unique_ptr<transport::Connection> connection) {
    links().accept(std::move(connection));
  };
  if (transport == "loopback") {
    return transport::listen_loopback(socket, accept);
  }
  if (transport == "zmq") {
    return transport::listen_zmq("ipc://" + socket, accept);
  }
  transport::ShmOptions shm;
  shm.on_trouble = [this](const Status& why) { trouble_.note(why); };
  return transport::listen_shm(socket, accept, shm);
}

Result<LentBuffers> LocalProcesses::lend_buffers(const WorkerProcessAddress& address) {
  const std::lock_guard lock(mutex_);
  return weights_.add_reader(options_.directory, address.process);
}

Result<actors::RowLending> LocalProcesses::lend_rows(const WorkerProcessAddress& address) {
  const std::lock_guard lock(mutex_);
  TIDEMILL_ASSIGN_OR_RETURN(LentBuffers rows,
                            rows_.add_reader(options_.directory, address.process));
  return actors::RowLending{std::move(rows.lender), std::move(rows.segments)};
}

std::uint64_t LocalProcesses::start(const std::string& role, const WorkerProcessAddress& address,
                                    OnExit on_exit) {
  if (is_of_this_process(address)) {
    return start_thread(role, address, std::move(on_exit));
  }
  ChildProgram child{options_.program.program, options_.program.arguments};
  child.on_lines = [this, name = address.name](const std::vector<std::string>& lines) {
    log_.write(name, lines);
  };
  child.arguments.insert(child.arguments.end(), {"--role", role});
  for (std::string& argument : arguments_of(address)) {
    child.arguments.push_back(std::move(argument));
  }
  return children_.start(std::move(child), [this, process = address.process,
                                            on_exit = std::move(on_exit)](const ChildEnd& end) {
    std::string words = clipped(end.last_line, kMaxLastWords);
    words += end.lines > 1 ? "; see " + log_.path().string() : "";
    on_exit({end.how, std::move(words), end.started});
    take_back_memory(process);
  });
}

std::uint64_t LocalProcesses::start_thread(const std::string& role,
                                           const WorkerProcessAddress& address, OnExit on_exit) {
  const std::uint64_t number = threads_.start(
      [this, role, address](const std::stop_token& stop) {
        return options_.work_in_thread(role, address, stop);
      },
      [this, process = address.process, on_exit = std::move(on_exit)](const Status& end) {
        on_exit({end.ok() ? "the thread has ended" : end.message()});
        take_back_memory(process);
      });
  return number | kThreadBit;
}

void LocalProcesses::take_back_memory(std::uint32_t process) {
  weights_.pool().drop_reader(process);
  rows_.pool().drop_reader(process);
}

int LocalProcesses::pid(std::uint64_t number) const {
  if ((number & kThreadBit) == 0) {
    return children_.pid(number);
  }
  return threads_.runs(number & ~kThreadBit) ? ::getpid() : 0;
}

void LocalProcesses::stop(std::uint64_t number) {
  if ((number & kThreadBit) == 0) {
    children_.stop(number);
  } else {
    threads_.stop(number & ~kThreadBit);
  }
}

Result<std::unique_ptr<transport::Connector>> connector_to(const WorkerProcessAddress& address) {
  if (address.transport == "loopback") {
    return transport::make_loopback_connector(address.socket);
  }
  if (address.transport == "shm") {
    return transport::make_shm_connector(address.socket);
  }
  if (address.transport == "zmq") {
    return transport::new_zmq_connector("ipc://" + address.socket);
  }
  return invalid_argument("--transport: " + address.transport + " is unknown");
}

}  // namespace tidemill::workflows
