// SPDX-License-Identifier: Apache-2.0
#include "transport/query/query_server.hpp"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/files/unique_fd.hpp"
#include "transport/unix_socket.hpp"

namespace tidemill::transport {
namespace {

// How long the server waits after it could not accept a connection.
constexpr int kPauseMilliseconds = 100;

// Receives one packet. Returns an empty text if there is none or it is too long.
std::string receive(int socket, std::size_t max_bytes) {
  std::string text(max_bytes + 1, '\0');
  const ssize_t got = ::recv(socket, text.data(), text.size(), MSG_DONTWAIT);
  text.resize(got > 0 && static_cast<std::size_t>(got) <= max_bytes ? static_cast<std::size_t>(got)
                                                                    : 0);
  return text;
}

bool send(int socket, const std::string& text) {
  return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(text.size());
}

}  // namespace

class QueryServer::Loop {
public:
  Loop(ListeningSocket socket, UniqueFd stop, Answer answer, OnTrouble on_trouble)
      : socket_(std::move(socket)),
        stop_(std::move(stop)),
        answer_(std::move(answer)),
        on_trouble_(std::move(on_trouble)) {
    thread_ = std::thread([this] { run(); });
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

private:
  void run() {
    for (;;) {
      pollfd files[] = {{stop_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
      ::poll(files, 2, -1);
      if ((files[0].revents & POLLIN) != 0) {
        return;
      }
      const UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.is_open() && errno != EAGAIN) {
        report(errno);
        ::poll(files, 1, kPauseMilliseconds);  // without descriptors, `poll` above would not wait
      }
      if (connection.is_open() && is_same_user(connection.get()) &&
          wait_to_read(connection.get(), clock_.now() + kMaxQueryWait)) {
        answer(connection.get());
      }
    }
  }

  // Reports what the system lacks. Otherwise the process has gone again.
  void report(int error) const {
    if (on_trouble_ &&
        (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)) {
      on_trouble_({Errc::kResourceExhausted,
                   "cannot accept a connection: " + std::system_category().message(error)});
    }
  }

  void answer(int connection) {
    const std::string query = receive(connection, kMaxQueryBytes);
    pollfd asker{connection, POLLRDHUP, 0};
    const bool gone = ::poll(&asker, 1, 0) > 0;  // it has given up, and will say so to its user
    if (!query.empty() && !gone) {
      std::string text = answer_(query);
      text.resize(std::min(text.size(), kMaxAnswerBytes));
      send(connection, text);
    }
  }

  SystemClock clock_;
  ListeningSocket socket_;
  UniqueFd stop_;  // an event
  const Answer answer_;
  const OnTrouble on_trouble_;
  std::thread thread_;
};

QueryServer::QueryServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
QueryServer::~QueryServer() = default;

Result<std::unique_ptr<QueryServer>> QueryServer::listen(const std::filesystem::path& path,
                                                         Answer answer, OnTrouble on_trouble) {
  TIDEMILL_ASSIGN_OR_RETURN(ListeningSocket socket, ListeningSocket::open(path));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.is_open()) {
    return Status(Errc::kResourceExhausted,
                  path.string() + ": " + std::generic_category().message(errno));
  }
  try {
    return std::unique_ptr<QueryServer>(new QueryServer(std::make_unique<Loop>(
        std::move(socket), std::move(stop), std::move(answer), std::move(on_trouble))));
  } catch (const std::system_error& error) {  // of the thread
    return Status(Errc::kResourceExhausted, path.string() + ": " + error.what());
  }
}

Result<std::string> send_query(const std::filesystem::path& path, const std::string& query,
                               Duration max_wait) {
  if (query.empty() || query.size() > kMaxQueryBytes) {
    return invalid_argument("a query of " + std::to_string(query.size()) + " bytes");
  }
  const SystemClock clock;
  const TimePoint deadline = clock.now() + max_wait;
  TIDEMILL_ASSIGN_OR_RETURN(const SocketPath socket, SocketPath::open(path));
  TIDEMILL_ASSIGN_OR_RETURN(const UniqueFd connection, connect_socket(socket, deadline));
  if (!send(connection.get(), query) || !wait_to_read(connection.get(), deadline)) {
    return Status(Errc::kTimeout, path.string() + ": no answer");
  }
  std::string answer = receive(connection.get(), kMaxAnswerBytes);
  if (answer.empty()) {
    return Status(Errc::kTimeout, path.string() + ": no answer");
  }
  return answer;
}

}  // namespace tidemill::transport
