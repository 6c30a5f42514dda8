// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "transport/envelope.hpp"
#include "transport/peer_link.hpp"
#include "transport/peer_link_impl.hpp"

namespace tidemill::transport {

class PeerLinks::Impl final : public PeerConnectionHandler {
public:
  Impl(const Clock& clock, Wake wake) : clock_(clock), wake_(std::move(wake)) {}
  ~Impl() override {
    TIDEMILL_CHECK(links_.empty()) << links_.size() << " links outlive their process";
  }

  std::unique_ptr<PeerLink::Impl> open(const PeerLinkOptions& options, PeerLinkListener& listener) {
    auto link = std::make_unique<PeerLink::Impl>(options, listener, clock_, wake_);
    {
      const std::lock_guard lock(mutex_);
      const bool is_new = links_.emplace(key_of(options.session), link.get()).second;
      TIDEMILL_CHECK(is_new) << "a second link to process " << options.session.peer;
    }
    wake_();
    return link;
  }

  // Returns once no call of this object uses the link.
  void forget(PeerLink::Impl& link) {
    std::unique_lock lock(mutex_);
    links_.erase(key_of(link.session_options()));
    unused_.wait(lock, [&] { return !in_use_.contains(&link); });
  }

  void accept(std::unique_ptr<Connection> connection) {
    std::unique_ptr<PeerConnection> dropped;
    {
      const std::lock_guard lock(mutex_);
      if (arrivals_.size() >= kMaxArrivals) {
        dropped = std::move(arrivals_.front().connection);
        arrivals_.pop_front();
      }
      Arrival arrival;
      arrival.connection = std::make_unique<PeerConnection>(std::move(connection));
      arrival.expires = clock_.now() + kMaxArrivalTime;
      arrival.connection->start(*this);
      arrivals_.push_back(std::move(arrival));
    }
    wake_();
  }

  // The first frame of an accepted connection.
  void on_frame(PeerConnection& from, const Buffer& frame) override {
    const Result<Envelope> envelope = read_envelope(frame);
    std::unique_ptr<PeerConnection> connection;
    PeerLink::Impl* link = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = envelope.ok() ? links_.find(key_of(envelope.value())) : links_.end();
      if (found == links_.end()) {
        from.connection().close();  // `on_closed` follows
        return;
      }
      connection = take_arrival(from);
      if (connection == nullptr) {
        return;  // it is being dropped
      }
      link = found->second;
      in_use_.insert(link);
    }
    from.set_handler(*link);
    link->attach(std::move(connection), &frame);
    end_use(*link);
  }

  void on_closed(PeerConnection& from, const Status& /*reason*/) override {
    {
      const std::lock_guard lock(mutex_);
      for (Arrival& arrival : arrivals_) {
        if (arrival.connection.get() == &from) {
          arrival.expires = TimePoint::min();  // `advance` destroys it, its own call must not
        }
      }
    }
    wake_();
  }

  void advance() {
    std::vector<PeerLink::Impl*> links;
    std::list<Arrival> expired;  // destroyed without the lock
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, link] : links_) {
        links.push_back(link);
      }
      for (auto it = arrivals_.begin(); it != arrivals_.end();) {
        const auto arrival = it++;
        if (arrival->expires <= clock_.now()) {
          expired.splice(expired.end(), arrivals_, arrival);
        }
      }
    }
    for (PeerLink::Impl* link : links) {
      if (begin_use(*link)) {
        link->advance();
        end_use(*link);
      }
    }
  }

  TimePoint next_event() {
    const std::lock_guard lock(mutex_);
    TimePoint next = TimePoint::max();
    for (const auto& [key, link] : links_) {
      next = std::min(next, link->next_event());
    }
    for (const Arrival& arrival : arrivals_) {
      next = std::min(next, arrival.expires);
    }
    return next;
  }

private:
  // The run, the incarnation and the peer.
  using Key = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;

  // A connection that was accepted and has not had a frame.
  struct Arrival {
    std::unique_ptr<PeerConnection> connection;
    TimePoint expires;
  };

  static Key key_of(const PeerSessionOptions& options) {
    return {options.run, options.incarnation, options.peer};
  }
  static Key key_of(const Envelope& envelope) {
    return {envelope.run, envelope.incarnation, envelope.sender};
  }

  // Requires the lock.
  std::unique_ptr<PeerConnection> take_arrival(const PeerConnection& connection) {
    for (auto it = arrivals_.begin(); it != arrivals_.end(); ++it) {
      if (it->connection.get() == &connection) {
        std::unique_ptr<PeerConnection> taken = std::move(it->connection);
        arrivals_.erase(it);
        return taken;
      }
    }
    return nullptr;
  }

  bool begin_use(PeerLink::Impl& link) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, open] : links_) {
      if (open == &link) {
        in_use_.insert(&link);
        return true;
      }
    }
    return false;
  }
  void end_use(PeerLink::Impl& link) {
    const std::lock_guard lock(mutex_);
    in_use_.erase(in_use_.find(&link));
    unused_.notify_all();
  }

  const Clock& clock_;
  const Wake wake_;
  std::mutex mutex_;  // of all below
  std::condition_variable unused_;
  std::map<Key, PeerLink::Impl*> links_;
  std::multiset<PeerLink::Impl*> in_use_;  // by calls of this object
  std::list<Arrival> arrivals_;            // oldest first; destroyed first: they call this object
};

PeerLink::PeerLink(std::unique_ptr<Impl> impl, PeerLinks& links)
    : links_(links), impl_(std::move(impl)) {}

PeerLink::~PeerLink() {
  links_.impl_->forget(*impl_);
}

Result<std::uint64_t> PeerLink::send(const OutgoingMessage& message) {
  return impl_->send(message);
}

void PeerLink::release(const IncomingMessage& message) {
  impl_->release(message);
}

void PeerLink::wake_at(TimePoint time) {
  impl_->wake_at(time);
}

void PeerLink::end(const std::string& reason) {
  impl_->end(reason);
}

PeerLinkStatus PeerLink::status() const {
  return impl_->status();
}

PeerLinks::PeerLinks(const Clock& clock, Wake wake)
    : impl_(std::make_unique<Impl>(clock, std::move(wake))) {}

PeerLinks::~PeerLinks() = default;

std::unique_ptr<PeerLink> PeerLinks::open(const PeerLinkOptions& options,
                                          PeerLinkListener& listener) {
  return std::unique_ptr<PeerLink>(new PeerLink(impl_->open(options, listener), *this));
}

void PeerLinks::accept(std::unique_ptr<Connection> connection) {
  impl_->accept(std::move(connection));
}

void PeerLinks::advance() {
  impl_->advance();
}

TimePoint PeerLinks::next_event() {
  return impl_->next_event();
}

class PeerLinkThread::Impl {
public:
  Impl() : thread_([this] { run(); }) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  PeerLinks& links() { return links_; }

private:
  void wake() {
    {
      const std::lock_guard lock(mutex_);
      awake_ = true;
    }
    changed_.notify_one();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      awake_ = false;
      lock.unlock();
      links_.advance();
      const TimePoint next = links_.next_event();
      lock.lock();
      const auto called = [this] { return awake_ || stopping_; };
      if (next == TimePoint::max()) {
        changed_.wait(lock, called);
      } else {
        changed_.wait_until(lock, next, called);
      }
    }
  }

  SystemClock clock_;
  std::mutex mutex_;  // of the two flags
  std::condition_variable changed_;
  bool awake_ = false;
  bool stopping_ = false;
  PeerLinks links_{clock_, [this] { wake(); }};
  std::thread thread_;  // last: it uses all of the above
};

PeerLinkThread::PeerLinkThread() : impl_(std::make_unique<Impl>()) {}

PeerLinkThread::~PeerLinkThread() = default;

PeerLinks& PeerLinkThread::links() {
  return impl_->links();
}

}  // namespace tidemill::transport
