// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/zmq_node.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <span>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <zmq.hpp>

#include "base/thread_limit.hpp"
#include "transport/zmq/zmq_connection.hpp"
#include "transport/zmq/zmq_endpoint.hpp"

namespace tidemill::transport {

enum class ZmqNode::Kind : std::uint8_t {
  kHello = 1,
  kAccepted = 2,
  kRefused = 3,
  kFrame = 4,
  kConsumed = 5,
  kBye = 6,
};

enum class ZmqNode::Refusal : std::uint8_t { kVersion = 1, kTooMany = 2, kNoThread = 3 };

namespace {

using std::chrono::milliseconds;

constexpr std::uint8_t kProtocolVersion = 1;
constexpr std::size_t kConsumedSize = 9;  // of a header
constexpr std::size_t kRoutingIdBytes = 16;
// A smaller frame is copied into its message, which is faster than counting a reference.
constexpr std::size_t kCopyToSend = 1024;
// ZeroMQ reads smaller messages into a buffer of this size that they share, so a frame would keep
// all of it alive.
constexpr std::size_t kCopyReceived = 8192;
constexpr int kMessagesPerTurn = 256;
constexpr auto kMaxWait = std::chrono::hours(24);

// How long a closed socket may go on to send, for the last bye.
constexpr int kLingerMs = 200;
constexpr int kHandshakeMs = 5'000;
// Messages that ZeroMQ has read and the node has not. The node never waits for anything else.
constexpr int kReceiveQueue = 256;
// Unlimited, because the sides limit what is in flight: a full queue could not tell which peer of
// a ROUTER socket is slow.
constexpr int kUnlimited = 0;

// Runs `action`, which uses ZeroMQ, and turns what it throws into a failure.
template <class F>
auto caught(F action) -> decltype(action()) {
  try {
    return action();
  } catch (const std::exception& error) {
    return Status(Errc::kUnavailable, std::string("zmq: ") + error.what());
  }
}

// How many threads ZeroMQ starts with the first socket of a context. It ends the process if it
// cannot start them, so they are tried before.
constexpr int kZmqThreads = 2;

void poll(std::span<zmq::pollitem_t> items, milliseconds timeout) {
  try {
    zmq::poll(items.data(), items.size(), timeout);
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) {
      throw;
    }
  }
}

std::string random_routing_id() {
  std::random_device random;
  std::string id(kRoutingIdBytes, '\0');
  for (char& byte : id) {
    byte = static_cast<char>(random());
  }
  id[0] = static_cast<char>(id[0] | 1);  // ZeroMQ makes the ids that begin with zero
  return id;
}

zmq::message_t message_of(const Buffer& frame) {
  const std::span<const std::byte> bytes = frame.bytes();
  if (bytes.size() < kCopyToSend) {
    return {bytes.data(), bytes.size()};
  }
  auto owner = std::make_unique<Buffer>(frame);
  const auto drop = [](void* /*data*/, void* hint) { delete static_cast<Buffer*>(hint); };
  // ZeroMQ only reads the bytes.
  zmq::message_t message(const_cast<std::byte*>(bytes.data()), bytes.size(), drop, owner.get());
  (void)owner.release();
  return message;
}

// The frame is aligned to 8 bytes, for readers that do not copy it.
Buffer frame_of(zmq::message_t message) {
  const std::span bytes(static_cast<const std::byte*>(message.data()), message.size());
  if (bytes.size() < kCopyReceived || reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0) {
    return Buffer::copy_of(bytes);
  }
  return Buffer::wrap(std::make_shared<zmq::message_t>(std::move(message)), bytes, DType::kU8);
}

struct MonitorEvent {
  std::uint16_t kind = 0;
  std::int32_t descriptor = -1;
};

std::optional<MonitorEvent> next_event(zmq::socket_t& monitor) {
  zmq::message_t content;
  zmq::message_t address;
  if (!monitor.recv(content, zmq::recv_flags::dontwait) ||
      !monitor.recv(address, zmq::recv_flags::dontwait)) {
    return std::nullopt;
  }
  MonitorEvent event;
  if (content.size() == sizeof(event.kind) + sizeof(event.descriptor)) {
    const auto* bytes = static_cast<const std::byte*>(content.data());
    std::memcpy(&event.kind, bytes, sizeof(event.kind));
    std::memcpy(&event.descriptor, bytes + sizeof(event.kind), sizeof(event.descriptor));
  }
  return event;
}

}  // namespace

Result<std::shared_ptr<zmq::context_t>> new_zmq_context() {
  return caught([]() -> Result<std::shared_ptr<zmq::context_t>> {
    return std::make_shared<zmq::context_t>();
  });
}

// -- sockets -------------------------------------------------------------------------------------

struct ZmqNode::Sockets {
  Sockets(zmq::context_t& context, int type)
      : routed(type == ZMQ_ROUTER), socket(context, type), monitor(context, ZMQ_PAIR) {
    socket.set(zmq::sockopt::maxmsgsize, std::int64_t{kMaxEnvelopeBytes});
    socket.set(zmq::sockopt::linger, kLingerMs);
    socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
    socket.set(zmq::sockopt::sndhwm, kUnlimited);
    socket.set(zmq::sockopt::rcvhwm, kReceiveQueue);
    if (routed) {
      socket.set(zmq::sockopt::router_mandatory, true);
      socket.set(zmq::sockopt::router_handover, true);
    } else {
      socket.set(zmq::sockopt::routing_id, random_routing_id());
      socket.set(zmq::sockopt::immediate, true);
      socket.set(zmq::sockopt::reconnect_ivl, -1);
    }
    // ZeroMQ frees the address of a monitor some time after the monitor has ended.
    std::random_device random;
    const std::string address =
        "inproc://" + std::to_string(random()) + "-" + std::to_string(random());
    const int events = routed ? ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED
                              : ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED;
    if (::zmq_socket_monitor(socket.handle(), address.c_str(), events) != 0) {
      throw zmq::error_t();
    }
    // A thread of ZeroMQ would wait if the queue of events were full.
    monitor.set(zmq::sockopt::rcvhwm, kUnlimited);
    monitor.set(zmq::sockopt::linger, 0);
    monitor.connect(address);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  // A thread of ZeroMQ would wait if it reported an event and the monitor were closed.
  ~Sockets() { ::zmq_socket_monitor(socket.handle(), nullptr, 0); }

  // Returns a whole message, or nothing if none has arrived.
  std::optional<Message> read();
  // Returns whether a message has arrived.
  bool has_input() { return (socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0; }

  const bool routed;
  zmq::socket_t socket;
  zmq::socket_t monitor;
};

struct ZmqNode::Message {
  std::string route;
  int descriptor = -1;        // of the transport on which it has arrived
  std::size_t num_parts = 0;  // without the route
  zmq::message_t header;
  zmq::message_t body;

  [[nodiscard]] std::span<const std::uint8_t> bytes() const {
    return {static_cast<const std::uint8_t*>(header.data()), header.size()};
  }
  // Returns whether this is a well-formed message of a kind.
  [[nodiscard]] bool is(Kind kind, std::size_t size = 1) const {
    return header.size() == size && bytes()[0] == static_cast<std::uint8_t>(kind) &&
           num_parts == (kind == Kind::kFrame ? 2 : 1);
  }
};

std::optional<ZmqNode::Message> ZmqNode::Sockets::read() {
  // The parts of a message arrive together.
  const auto next = [this](zmq::message_t& part) {
    return socket.recv(part, zmq::recv_flags::dontwait).has_value();
  };
  Message message;
  zmq::message_t part;
  if (!next(part)) {
    return std::nullopt;
  }
  if (routed) {
    message.route = part.to_string();
    if (!part.more() || !next(part)) {
      return message;
    }
  }
  message.descriptor = ::zmq_msg_get(part.handle(), ZMQ_SRCFD);  // a route need not have it
  for (;;) {
    const bool more = part.more();
    if (message.num_parts < 2) {
      (message.num_parts == 0 ? message.header : message.body).swap(part);
    }
    ++message.num_parts;
    if (!more || !next(part)) {
      return message;
    }
  }
}

// -- making and ending a node --------------------------------------------------------------------

ZmqNode::ZmqNode(std::shared_ptr<zmq::context_t> context, int socket_type)
    : context_(std::move(context)),
      routed_(socket_type == ZMQ_ROUTER),
      sockets_(std::make_unique<Sockets>(*context_, socket_type)),
      descriptor_(sockets_->socket.get(zmq::sockopt::fd)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!wake_.is_open() || !epoll_.is_open()) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  for (const int descriptor : {wake_.get(), sockets_->monitor.get(zmq::sockopt::fd), descriptor_}) {
    control(EPOLL_CTL_ADD, descriptor, EPOLLIN);
  }
}

// Sets for which events of a descriptor the thread of the node waits.
void ZmqNode::control(int operation, int descriptor, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void ZmqNode::begin() {
  thread_ = std::thread([this] { run(); });
}

ZmqNode::~ZmqNode() {
  {
    const std::lock_guard lock(socket_mutex_);
    stopping_ = true;
  }
  wake();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Result<std::shared_ptr<ZmqNode>> ZmqNode::connect(const std::shared_ptr<zmq::context_t>& context,
                                                  const std::string& endpoint, Duration max_wait) {
  const TimePoint deadline = SystemClock().now() + std::min<Duration>(max_wait, kMaxWait);
  const Result<ZmqAddress> address = address_of(endpoint);
  if (!address.ok()) {
    return Status(Errc::kUnavailable, address.status().message());
  }
  return caught([&]() -> Result<std::shared_ptr<ZmqNode>> {
    TIDEMILL_RETURN_IF_ERROR(try_threads(kZmqThreads));
    std::shared_ptr<ZmqNode> node(new ZmqNode(context, ZMQ_DEALER));
    node->sockets_->socket.connect(address.value().endpoint);
    if (const Status status = node->shake_hands(deadline); !status.ok()) {
      return status.with_context(endpoint);
    }
    const int descriptor = node->transports_.empty() ? -1 : *node->transports_.begin();
    node->side_ = node->new_side({});
    node->peers_.emplace(std::string(), Peer{node->side_, descriptor});
    node->begin();
    return node;
  });
}

const char* ZmqNode::text_of(Refusal why) {
  switch (why) {
    case Refusal::kVersion: return "the listening process speaks another version of the protocol";
    case Refusal::kNoThread: return "the listening process has no thread left for a connection";
    case Refusal::kTooMany: break;
  }
  return "the listening process takes no more connections";
}

// Says hello and waits for the reply. The thread has not begun.
Status ZmqNode::shake_hands(TimePoint deadline) {
  bool greeted = false;
  for (;;) {
    if (const std::optional<Message> reply = sockets_->read()) {
      read_monitor();  // to know the transport
      if (reply->is(Kind::kAccepted)) {
        return {};
      }
      if (!reply->is(Kind::kRefused, 2)) {
        return {Errc::kUnavailable, "the listening process speaks another protocol"};
      }
      return {Errc::kUnavailable, text_of(static_cast<Refusal>(reply->bytes()[1]))};
    }
    if (unreachable_ || !broken_.empty()) {
      return {Errc::kUnavailable, "no process accepts connections there"};
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - SystemClock().now());
    if (left <= milliseconds::zero()) {
      return {Errc::kUnavailable, "the listening process has not accepted in time"};
    }
    const auto events = static_cast<std::int16_t>(greeted ? ZMQ_POLLIN : ZMQ_POLLOUT);
    std::array<zmq::pollitem_t, 2> items{{{sockets_->socket.handle(), 0, events, 0},
                                          {sockets_->monitor.handle(), 0, ZMQ_POLLIN, 0}}};
    poll(items, left);
    read_monitor();
    if (!greeted && (items[0].revents & ZMQ_POLLOUT) != 0) {
      const std::array hello{static_cast<std::uint8_t>(Kind::kHello), kProtocolVersion};
      greeted = send({}, hello);
    }
  }
}

Result<std::shared_ptr<ZmqNode>> ZmqNode::listen(UniqueFd listener, OnPeer on_peer) {
  return caught([&]() -> Result<std::shared_ptr<ZmqNode>> {
    TIDEMILL_RETURN_IF_ERROR(try_threads(kZmqThreads));
    std::shared_ptr<ZmqNode> node(new ZmqNode(std::make_shared<zmq::context_t>(), ZMQ_ROUTER));
    node->on_peer_ = std::move(on_peer);
    node->sockets_->socket.set(zmq::sockopt::use_fd, listener.get());
    // With a socket that listens already, ZeroMQ uses the path only to name it in events.
    node->sockets_->socket.bind("ipc:///listener");
    (void)listener.release();
    node->begin();
    return node;
  });
}

// -- turns of the threads ------------------------------------------------------------------------

void ZmqNode::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));  // fails only if the thread is awake anyway
}

void ZmqNode::note_work(const std::string& route) {
  const std::lock_guard lock(ready_mutex_);
  ready_.push_back(route);
}

bool ZmqNode::work_waits() const {
  const std::lock_guard lock(ready_mutex_);
  return !ready_.empty();
}

// Requires the lock of the socket.
bool ZmqNode::ends() const {
  return !failure_.ok() || (!routed_ && peers_.empty());
}

// Runs `action` and then gives the socket back. What is left to do is for the thread of the node.
template <class F>
void ZmqNode::use_socket(std::unique_lock<std::mutex> lock, F action) {
  if (sockets_ != nullptr && failure_.ok()) {
    failure_ = caught([&] {
      action();
      return Status();
    });
  }
  const bool left = left_ || !broken_.empty() || ends();
  lock.unlock();
  // A thread whose `try_lock` has failed has noted its work before. Either the look below finds the
  // note, or the note came later, and then the failure was due to a later user, which looks too.
  if (left || work_waits()) {
    wake();
  }
}

void ZmqNode::on_work(const std::string& route, When when) {
  note_work(route);
  if (when == When::kSoon) {
    wake();
    return;
  }
  std::unique_lock lock(socket_mutex_, std::try_to_lock);
  if (lock.owns_lock()) {
    use_socket(std::move(lock), [this] { serve_ready(); });
  }
}

int ZmqNode::begin_watch() {
  bool watches = false;
  use_socket(std::unique_lock(socket_mutex_), [&] {
    if (!watched_ && !ends()) {
      control(EPOLL_CTL_MOD, descriptor_, 0);
      watched_ = watches = true;
    }
  });
  return watches ? descriptor_ : -1;
}

void ZmqNode::receive_watched() {
  use_socket(std::unique_lock(socket_mutex_), [this] { receive_and_serve(); });
}

void ZmqNode::end_watch() {
  std::unique_lock lock(socket_mutex_);
  watched_ = false;
  use_socket(std::move(lock), [this] { control(EPOLL_CTL_MOD, descriptor_, EPOLLIN); });
}

std::shared_ptr<ZmqSide> ZmqNode::new_side(const std::string& route) {
  ZmqSideSocket& socket = *this;
  auto side = std::make_shared<ZmqSide>(socket, route);
  sides_.push_back(side);
  return side;
}

// -- sending -------------------------------------------------------------------------------------

// Returns false if the peer is gone.
bool ZmqNode::send(const std::string& route, std::span<const std::uint8_t> header,
                   const Buffer* frame) {
  zmq::socket_t& socket = sockets_->socket;
  constexpr auto kMore = zmq::send_flags::dontwait | zmq::send_flags::sndmore;
  constexpr auto kLast = zmq::send_flags::dontwait;
  try {
    if (sockets_->routed && !socket.send(zmq::buffer(route), kMore)) {
      return false;
    }
    if (!socket.send(zmq::buffer(header.data(), header.size()), frame != nullptr ? kMore : kLast)) {
      return false;
    }
    return frame == nullptr || socket.send(message_of(*frame), kLast).has_value();
  } catch (const zmq::error_t& error) {
    if (error.num() != EHOSTUNREACH) {
      throw;
    }
    return false;
  }
}

bool ZmqNode::send(const std::string& route, Kind kind) {
  const std::array header{static_cast<std::uint8_t>(kind)};
  return send(route, header);
}

bool ZmqNode::send_frame(const std::string& route, const Buffer& frame) {
  const std::array header{static_cast<std::uint8_t>(Kind::kFrame)};
  return send(route, header, &frame);
}

bool ZmqNode::send_consumed(const std::string& route, std::uint64_t consumed) {
  std::array<std::uint8_t, kConsumedSize> header{static_cast<std::uint8_t>(Kind::kConsumed)};
  for (unsigned i = 0; i < 8; ++i) {
    header[i + 1] = static_cast<std::uint8_t>(consumed >> (8 * i));
  }
  return send(route, header);
}

void ZmqNode::serve(const std::string& route) {
  const auto peer = peers_.find(route);
  if (peer == peers_.end()) {
    return;
  }
  const std::shared_ptr<ZmqSide> side = peer->second.side;
  const ZmqWork work = side->take_work();
  bool sent = std::ranges::all_of(work.frames,
                                  [&](const Buffer& frame) { return send_frame(route, frame); });
  if (work.consumed) {
    sent = sent && send_consumed(route, *work.consumed);
  }
  if (work.bye) {
    (void)send(route, Kind::kBye);
    peers_.erase(peer);
  } else if (!sent) {
    side->end({Errc::kUnavailable, "the connection has broken"});
    peers_.erase(peer);
  } else if (work.more) {
    note_work(route);
  }
}

// What ZeroMQ does to send may also take what has arrived from the descriptor of the socket.
void ZmqNode::serve_ready() {
  std::vector<std::string> routes;
  {
    const std::lock_guard lock(ready_mutex_);
    routes.swap(ready_);
  }
  for (const std::string& route : routes) {
    serve(route);
  }
  left_ = left_ || (!routes.empty() && sockets_->has_input());
}

// -- receiving -----------------------------------------------------------------------------------

void ZmqNode::end_transport(int descriptor) {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (peer->second.descriptor == descriptor) {
      peer->second.side->end({Errc::kUnavailable, "the connection has broken"});
      peer = peers_.erase(peer);
    } else {
      ++peer;
    }
  }
}

void ZmqNode::end_broken() {
  for (const int descriptor : std::exchange(broken_, {})) {
    end_transport(descriptor);
  }
}

void ZmqNode::read_monitor() {
  while (const std::optional<MonitorEvent> event = next_event(sockets_->monitor)) {
    switch (event->kind) {
      case ZMQ_EVENT_CONNECTED:
      case ZMQ_EVENT_ACCEPTED:
        // The descriptor is used again, so messages of its earlier transport come too late.
        if (std::erase(broken_, event->descriptor) > 0) {
          end_transport(event->descriptor);
        }
        transports_.insert(event->descriptor);
        break;
      case ZMQ_EVENT_DISCONNECTED:
        transports_.erase(event->descriptor);
        broken_.push_back(event->descriptor);
        break;
      case ZMQ_EVENT_CLOSED: unreachable_ = true; break;
      default: break;
    }
  }
}

void ZmqNode::on_hello(const Message& hello) {
  const auto refuse = [&](Refusal why) {
    const std::array header{static_cast<std::uint8_t>(Kind::kRefused),
                            static_cast<std::uint8_t>(why)};
    (void)send(hello.route, header);
  };
  read_monitor();
  if (const auto peer = peers_.find(hello.route); peer != peers_.end()) {
    peer->second.side->end({Errc::kUnavailable, "the other side has connected anew"});
    peers_.erase(peer);
  }
  if (!transports_.contains(hello.descriptor)) {
    return;
  }
  if (!hello.is(Kind::kHello, 2) || hello.bytes()[1] != kProtocolVersion) {
    refuse(Refusal::kVersion);
    return;
  }
  std::erase_if(sides_, [](const auto& side) { return side.expired(); });
  if (sides_.size() >= kMaxZmqConnections) {
    refuse(Refusal::kTooMany);
    return;
  }
  std::shared_ptr<ZmqSide> side;
  try {
    side = new_side(hello.route);
  } catch (const std::system_error&) {
    refuse(Refusal::kNoThread);  // the connector reports it
    return;
  }
  if (!send(hello.route, Kind::kAccepted)) {
    return;
  }
  const auto peer = peers_.emplace(hello.route, Peer{side, hello.descriptor}).first;
  if (!on_peer_(side)) {
    (void)send(hello.route, Kind::kBye);
    peers_.erase(peer);
  }
}

// Errors: why the connection has ended.
Status ZmqNode::on_message(ZmqSide& side, Message& message) {
  if (message.is(Kind::kFrame)) {
    return side.on_frame(frame_of(std::move(message.body)));
  }
  if (message.is(Kind::kConsumed, kConsumedSize)) {
    std::uint64_t consumed = 0;
    for (unsigned i = 0; i < 8; ++i) {
      consumed |= std::uint64_t{message.bytes()[i + 1]} << (8 * i);
    }
    note_work(message.route);  // there may be room for frames
    return side.on_consumed(consumed);
  }
  if (message.is(Kind::kBye)) {
    return {Errc::kUnavailable, "the other side has closed the connection"};
  }
  return corrupt_data("connection: the other side has sent an unknown message");
}

void ZmqNode::handle(Message& message) {
  if (sockets_->routed && !message.bytes().empty() &&
      message.bytes()[0] == static_cast<std::uint8_t>(Kind::kHello)) {
    on_hello(message);
    return;
  }
  const auto peer = peers_.find(message.route);
  if (peer == peers_.end()) {
    return;  // the message belongs to no connection
  }
  // A ROUTER socket gives a routing id to the last peer that uses it.
  const bool same = !sockets_->routed || peer->second.descriptor == message.descriptor;
  const Status status = same ? on_message(*peer->second.side, message)
                             : corrupt_data("connection: another process uses its routing id");
  if (!status.ok()) {
    peer->second.side->end(status);
    if (status.code() == Errc::kCorruptData) {
      (void)send(message.route, Kind::kBye);
    }
    peers_.erase(peer);
  }
}

// Receives, and sends what that makes room for. Notes whether something is left to receive.
void ZmqNode::receive_and_serve() {
  left_ = true;
  for (int i = 0; i < kMessagesPerTurn && left_; ++i) {
    std::optional<Message> message = sockets_->read();
    left_ = message.has_value();
    if (left_) {
      handle(*message);
    }
  }
  serve_ready();
}

// -- the thread ----------------------------------------------------------------------------------

void ZmqNode::end_peers(const Status& reason) {
  for (const auto& [route, peer] : peers_) {
    peer.side->end(reason);
  }
  peers_.clear();
}

ZmqNode::Turn ZmqNode::take_turn() {
  const std::lock_guard lock(socket_mutex_);
  if (failure_.ok()) {
    failure_ = caught([this] {
      read_monitor();
      receive_and_serve();
      if (!left_) {
        end_broken();
      }
      return Status();
    });
  }
  if (!failure_.ok()) {
    end_peers(failure_);
    const std::lock_guard ready_lock(ready_mutex_);
    ready_.clear();
  }
  // A watcher waits for a descriptor of the socket. It learns of the end from its side.
  if (!watched_ && (ends() || (stopping_ && !work_waits()))) {
    end_peers({Errc::kUnavailable, "the connection has broken"});
    sockets_.reset();  // closes the connection, although the program may not destroy it yet
    return Turn::kEnded;
  }
  return std::exchange(left_, false) && failure_.ok() ? Turn::kWorkLeft : Turn::kDone;
}

void ZmqNode::wait(milliseconds timeout) {
  std::array<epoll_event, 3> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(timeout.count()));
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<std::size_t>(i)].data.fd == wake_.get()) {
      std::uint64_t times = 0;
      (void)!::read(wake_.get(), &times, sizeof(times));
    }
  }
}

void ZmqNode::run() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  constexpr milliseconds kForever{-1};
  for (Turn turn = take_turn(); turn != Turn::kEnded; turn = take_turn()) {
    wait(turn == Turn::kWorkLeft || work_waits() ? milliseconds::zero() : kForever);
  }
}

}  // namespace tidemill::transport
