// SPDX-License-Identifier: Apache-2.0
// A process at the other end of a connection, which returns each frame. A test kills it.
//
//   zmq_peer listen|connect ENDPOINT
//
// Prints its process id when it is connected, or listens.
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string_view>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "transport/zmq/zmq_connection.hpp"

namespace tidemill::transport {
namespace {

class Echo final : public ConnectionListener {
public:
  explicit Echo(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {
    connection_->start(*this);
  }
  void on_frame(const Buffer& frame) override { (void)connection_->send(frame); }
  void on_closed(const Status& /*reason*/) override {}

private:
  std::unique_ptr<Connection> connection_;
};

int run(bool listens, const char* endpoint) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::mutex mutex;
  std::vector<std::unique_ptr<Echo>> echoes;
  const auto add = [&](std::unique_ptr<Connection> connection) {
    const std::lock_guard lock(mutex);
    echoes.push_back(std::make_unique<Echo>(std::move(connection)));
  };
  std::unique_ptr<Acceptor> acceptor;
  if (listens) {
    acceptor = listen_zmq(endpoint, add).value();
  } else {
    add(new_zmq_connector(endpoint).value()->connect(std::chrono::seconds(20)).value());
  }
  std::printf("%d\n", ::getpid());
  std::fflush(stdout);
  for (;;) {
    ::pause();
  }
}

}  // namespace
}  // namespace tidemill::transport

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  return tidemill::transport::run(std::string_view(argv[1]) == "listen", argv[2]);
}
