// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback_connection.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/frame_size.hpp"

namespace tidemill::transport {
namespace {

// -- connections ----------------------------------------------------------------------------------

// What waits for the listener of one side.
class Inbox {
public:
  void start(ConnectionListener& listener) {
    {
      const std::lock_guard lock(mutex_);
      listener_ = &listener;
    }
    changed_.notify_one();
  }

  // Returns false if the side is closed.
  bool put(const Buffer& frame) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_.has_value()) {
        return false;
      }
      frames_.push_back(frame);
    }
    changed_.notify_one();
    return true;
  }

  // Closes the side, unless it is closed. Frames that wait are dropped, or delivered before that.
  void close(const std::string& reason, bool drop_frames) {
    {
      const std::lock_guard lock(mutex_);
      if (!closed_.has_value()) {
        closed_ = Status(Errc::kUnavailable, reason);
      }
      if (drop_frames) {
        frames_.clear();
      }
    }
    changed_.notify_one();
  }

  // Ends `deliver`, which makes no further call.
  void abandon() {
    {
      const std::lock_guard lock(mutex_);
      abandoned_ = true;
    }
    changed_.notify_one();
  }

  // Calls the listener until the side is closed or abandoned.
  void deliver() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] {
        return abandoned_ || (listener_ != nullptr && (closed_.has_value() || !frames_.empty()));
      });
      if (abandoned_) {
        return;
      }
      if (frames_.empty()) {
        const Status reason = *closed_;
        lock.unlock();
        listener_->on_closed(reason);
        return;
      }
      const Buffer frame = std::move(frames_.front());
      frames_.pop_front();
      lock.unlock();
      listener_->on_frame(frame);
      lock.lock();
    }
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  ConnectionListener* listener_ = nullptr;  // null: the side was not started
  std::deque<Buffer> frames_;
  std::optional<Status> closed_;
  bool abandoned_ = false;
};

class LoopbackConnection final : public Connection {
public:
  // Throws `std::system_error` if the system starts no thread.
  LoopbackConnection(std::shared_ptr<Inbox> own, std::shared_ptr<Inbox> peer)
      : own_(std::move(own)),
        peer_(std::move(peer)),
        thread_([inbox = own_] { inbox->deliver(); }) {}
  LoopbackConnection(const LoopbackConnection&) = delete;
  LoopbackConnection& operator=(const LoopbackConnection&) = delete;
  ~LoopbackConnection() override {
    own_->abandon();
    LoopbackConnection::close();
    thread_.join();
  }

  void start(ConnectionListener& listener) override { own_->start(listener); }
  Status send(const Buffer& frame) override {
    TIDEMILL_RETURN_IF_ERROR(check_frame_size(frame));
    return peer_->put(frame) ? Status() : Status(Errc::kUnavailable, "connection: it is closed");
  }
  void close() override {
    own_->close("this side has closed the connection", true);
    peer_->close("the other side has closed the connection", false);
  }

private:
  const std::shared_ptr<Inbox> own_;
  const std::shared_ptr<Inbox> peer_;
  std::thread thread_;
};

// -- listening ------------------------------------------------------------------------------------

// Where an acceptor listens.
struct Endpoint {
  std::mutex mutex;              // held during a call of `on_accept`
  Acceptor::OnAccept on_accept;  // empty: the acceptor is gone
};

// The endpoints of this process.
class EndpointTable {
public:
  static EndpointTable& of_process() {
    static EndpointTable table;
    return table;
  }

  // Returns null if the name is taken.
  std::shared_ptr<Endpoint> add(const std::string& name, Acceptor::OnAccept on_accept) {
    const auto endpoint = std::make_shared<Endpoint>();
    endpoint->on_accept = std::move(on_accept);
    const std::lock_guard lock(mutex_);
    return endpoints_.try_emplace(name, endpoint).second ? endpoint : nullptr;
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    endpoints_.erase(name);
  }
  // Returns null if nothing listens there.
  std::shared_ptr<Endpoint> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto it = endpoints_.find(name);
    return it == endpoints_.end() ? nullptr : it->second;
  }

private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Endpoint>> endpoints_;
};

class LoopbackAcceptor final : public Acceptor {
public:
  LoopbackAcceptor(std::string name, std::shared_ptr<Endpoint> endpoint)
      : name_(std::move(name)), endpoint_(std::move(endpoint)) {}
  LoopbackAcceptor(const LoopbackAcceptor&) = delete;
  LoopbackAcceptor& operator=(const LoopbackAcceptor&) = delete;
  ~LoopbackAcceptor() override {
    EndpointTable::of_process().remove(name_);
    const std::lock_guard lock(endpoint_->mutex);
    endpoint_->on_accept = nullptr;
  }

private:
  const std::string name_;
  const std::shared_ptr<Endpoint> endpoint_;
};

class LoopbackConnector final : public Connector {
public:
  explicit LoopbackConnector(std::string name) : name_(std::move(name)) {}

  Result<std::unique_ptr<Connection>> connect(Duration /*max_wait*/) override {
    const std::shared_ptr<Endpoint> endpoint = EndpointTable::of_process().find(name_);
    if (endpoint == nullptr) {
      return nothing_listens();
    }
    const std::lock_guard lock(endpoint->mutex);
    if (!endpoint->on_accept) {
      return nothing_listens();
    }
    const auto at_connector = std::make_shared<Inbox>();
    const auto at_acceptor = std::make_shared<Inbox>();
    try {
      auto connected = std::make_unique<LoopbackConnection>(at_connector, at_acceptor);
      endpoint->on_accept(std::make_unique<LoopbackConnection>(at_acceptor, at_connector));
      return std::unique_ptr<Connection>(std::move(connected));
    } catch (const std::system_error&) {
      return Status(Errc::kUnavailable, name_ + ": the system starts no thread for a connection");
    }
  }

private:
  [[nodiscard]] Status nothing_listens() const {
    return {Errc::kUnavailable, name_ + ": this process does not listen there"};
  }

  const std::string name_;
};

}  // namespace

std::unique_ptr<Connector> make_loopback_connector(const std::string& name) {
  return std::make_unique<LoopbackConnector>(name);
}

Result<std::unique_ptr<Acceptor>> listen_loopback(const std::string& name,
                                                  Acceptor::OnAccept on_accept) {
  std::shared_ptr<Endpoint> endpoint = EndpointTable::of_process().add(name, std::move(on_accept));
  if (endpoint == nullptr) {
    return Status(Errc::kUnavailable, name + ": this process listens there already");
  }
  return std::unique_ptr<Acceptor>(std::make_unique<LoopbackAcceptor>(name, std::move(endpoint)));
}

}  // namespace tidemill::transport
