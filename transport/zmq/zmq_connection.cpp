// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/zmq_connection.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/files/unique_fd.hpp"
#include "transport/zmq/zmq_endpoint.hpp"
#include "transport/zmq/zmq_node.hpp"
#include "transport/zmq/zmq_side.hpp"

namespace tidemill::transport {
namespace {

class ZmqConnection final : public Connection {
public:
  ZmqConnection(std::shared_ptr<ZmqNode> node, std::shared_ptr<ZmqSide> side)
      : node_(std::move(node)), side_(std::move(side)) {}
  ~ZmqConnection() override { side_->stop(); }

  void start(ConnectionListener& listener) override { side_->start(listener); }
  Status send(const Buffer& frame) override { return side_->send(frame); }
  void close() override { side_->close(); }

private:
  const std::shared_ptr<ZmqNode> node_;  // which the side calls
  const std::shared_ptr<ZmqSide> side_;
};

class ZmqConnector final : public Connector {
public:
  ZmqConnector(std::shared_ptr<zmq::context_t> context, std::string endpoint)
      : context_(std::move(context)), endpoint_(std::move(endpoint)) {}

  Result<std::unique_ptr<Connection>> connect(Duration max_wait) override {
    TIDEMILL_ASSIGN_OR_RETURN(auto node, ZmqNode::connect(context_, endpoint_, max_wait));
    std::shared_ptr<ZmqSide> side = node->side();
    return std::unique_ptr<Connection>(
        std::make_unique<ZmqConnection>(std::move(node), std::move(side)));
  }

private:
  const std::shared_ptr<zmq::context_t> context_;
  const std::string endpoint_;
};

// Accepted sides that wait for `OnAccept`, so that it may be slow.
//
// Threads: safe to use concurrently.
class AcceptQueue {
public:
  // Returns false if the acceptor is destroyed.
  bool put(std::shared_ptr<ZmqSide> side) {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      sides_.push_back(std::move(side));
      changed_.notify_all();
    }
    return !closed_;
  }

  // Waits for a side. Returns null after `close`.
  std::shared_ptr<ZmqSide> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !sides_.empty(); });
    if (closed_) {
      return nullptr;
    }
    std::shared_ptr<ZmqSide> side = std::move(sides_.front());
    sides_.pop_front();
    return side;
  }

  // Closes the sides that wait, too.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    const std::deque<std::shared_ptr<ZmqSide>> left = std::exchange(sides_, {});
    lock.unlock();
    for (const std::shared_ptr<ZmqSide>& side : left) {
      side->stop();
    }
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<ZmqSide>> sides_;
  bool closed_ = false;
};

// A ROUTER socket cannot stop to listen without closing its connections, so it listens as long as
// one of them is left. Removing the file of the socket keeps others from connecting.
class ZmqAcceptor final : public Acceptor {
public:
  ZmqAcceptor(std::unique_ptr<SocketFile> file, std::shared_ptr<AcceptQueue> queue,
              std::shared_ptr<ZmqNode> node, OnAccept on_accept)
      : file_(std::move(file)),
        queue_(std::move(queue)),
        node_(std::move(node)),
        on_accept_(std::move(on_accept)),
        thread_([this] { accept(); }) {}
  ~ZmqAcceptor() override {
    file_.reset();
    queue_->close();
    thread_.join();
  }

private:
  void accept() {
    while (std::shared_ptr<ZmqSide> side = queue_->take()) {
      on_accept_(std::make_unique<ZmqConnection>(node_, std::move(side)));
    }
  }

  std::unique_ptr<SocketFile> file_;
  const std::shared_ptr<AcceptQueue> queue_;
  const std::shared_ptr<ZmqNode> node_;
  const OnAccept on_accept_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Connector>> new_zmq_connector(const std::string& endpoint) {
  TIDEMILL_RETURN_IF_ERROR(check_endpoint(endpoint));
  TIDEMILL_ASSIGN_OR_RETURN(auto context, new_zmq_context());
  return std::unique_ptr<Connector>(std::make_unique<ZmqConnector>(std::move(context), endpoint));
}

Result<std::unique_ptr<Acceptor>> listen_zmq(const std::string& endpoint,
                                             Acceptor::OnAccept on_accept) {
  TIDEMILL_RETURN_IF_ERROR(check_endpoint(endpoint));
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<SocketFile> file, SocketFile::listen(endpoint));
  auto queue = std::make_shared<AcceptQueue>();
  const auto on_peer = [queue](const std::shared_ptr<ZmqSide>& side) { return queue->put(side); };
  TIDEMILL_ASSIGN_OR_RETURN(auto node, ZmqNode::listen(UniqueFd(file->release_socket()), on_peer));
  try {
    return std::unique_ptr<Acceptor>(std::make_unique<ZmqAcceptor>(
        std::move(file), std::move(queue), std::move(node), std::move(on_accept)));
  } catch (const std::system_error& error) {
    return Status(Errc::kUnavailable, endpoint + ": cannot start a thread: " + error.what());
  }
}

}  // namespace tidemill::transport
