// SPDX-License-Identifier: Apache-2.0
//
// The states of a connection:
//   stranger  accepted; its first packet must be `Hello`, before a deadline.
//               `Hello` of an expected reader: -> reader. Anything else: closed.
//   reader    its requests are served one after the other. While a response does not fit into its
//             socket, nothing is read from it, and a deadline runs. Requests to unmap wait without
//             a deadline: a reader that does not take them keeps memory, as one with loans does.
//               The connection hangs up, breaks a rule, misses the deadline, or the pool drops the
//               reader: closed.
#include "transport/segments/segment_server.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "transport/segments/segment_store.hpp"
#include "transport/segments/segment_wire.hpp"
#include "transport/unix_socket.hpp"

namespace tidemill::transport {
namespace {

using segment_wire::AboutSegment;
using segment_wire::Descriptors;
using segment_wire::Kind;
using segment_wire::Packet;
using segment_wire::Transfer;

constexpr std::uint64_t kListener = 0;  // of `epoll_event::data`; clients have larger numbers
constexpr std::uint64_t kWake = 1;
constexpr int kEventsAtOnce = 64;
constexpr int kPacketsAtOnce = 64;  // of one client, before the others have their turn
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

// The deadline of a client that need not do anything.
constexpr TimePoint kNever = TimePoint::max();

// Replaces a socket at which no process listens.
Result<ListeningSocket> listen_at(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const SocketPath at, SocketPath::open(path));
  if (may_listen(at)) {
    return invalid_argument(path.native() + ": another process listens there");
  }
  return ListeningSocket::open(path);
}

}  // namespace

// The thread of a server and the connections that it serves.
class SegmentServer::Loop {
public:
  Loop(std::shared_ptr<SegmentStore> store, SegmentServerOptions options, ListeningSocket listener)
      : store_(std::move(store)), options_(std::move(options)), listener_(std::move(listener)) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  [[nodiscard]] Status start();

private:
  // What the socket of a client did not take: a segment, or that it is not lent.
  struct Response {
    std::uint64_t segment = 0;
    std::shared_ptr<const SegmentMemory> memory;  // null: not lent
  };
  struct Client {
    UniqueFd socket;
    std::uint32_t number = 0;              // of the reader
    std::optional<AdmittedReader> reader;  // nothing: a stranger
    TimePoint deadline = kNever;
    std::optional<Response> response;
    std::deque<std::uint64_t> unmaps;  // segments that the reader has to unmap
    std::uint32_t watched = 0;         // events
  };
  using Clients = std::map<std::uint64_t, Client>;

  void run();
  void handle(const epoll_event& event);
  void accept_all();
  void accept_one(UniqueFd socket);
  void read_packets(Clients::iterator client);
  [[nodiscard]] Status follow(Client& client, const Packet& packet);
  [[nodiscard]] Status greet(Client& client, const Packet& packet);
  [[nodiscard]] Status map_segment(Client& client, std::uint64_t segment);
  void send_waiting(Clients::iterator client);
  [[nodiscard]] Transfer send_next(Client& client);
  void follow_notices();
  void close_expired();
  [[nodiscard]] int wait_ms() const;
  void watch(std::uint64_t id, Client& client);
  void watch_listener(std::uint32_t events);
  // Closes a connection; `reason` is success if the other side has closed it.
  void close(Clients::iterator client, const Status& reason);
  void report(const Status& reason);

  std::shared_ptr<SegmentStore> store_;
  SegmentServerOptions options_;
  ListeningSocket listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  SystemClock clock_;
  Clients clients_;
  std::uint64_t last_id_ = kWake;
  TimePoint accept_again_ = kNever;  // when the listener is watched again
  Packet packet_{};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// -- packets
// ---------------------------------------------------------------------------------------

Transfer SegmentServer::Loop::send_next(Client& client) {
  const int socket = client.socket.get();
  if (client.response && client.response->memory != nullptr) {
    const SegmentMemory& memory = *client.response->memory;
    const segment_wire::Segment message{Kind::kSegment, 0, client.response->segment,
                                        memory.bytes().size()};
    return segment_wire::send_packet(socket, segment_wire::bytes_of(message), memory.descriptor());
  }
  const AboutSegment message = client.response
                                   ? AboutSegment{Kind::kUnlent, 0, client.response->segment}
                                   : AboutSegment{Kind::kUnmap, 0, client.unmaps.front()};
  return segment_wire::send_packet(socket, segment_wire::bytes_of(message));
}

void SegmentServer::Loop::send_waiting(Clients::iterator client) {
  Client& to = client->second;
  while (to.response || !to.unmaps.empty()) {
    const Transfer sent = send_next(to);
    if (sent == Transfer::kWouldBlock) {
      if (to.response && to.deadline == kNever) {
        to.deadline = clock_.now() + options_.max_send_wait;
      }
      break;
    }
    if (sent != Transfer::kDone) {
      close(client, Status());
      return;
    }
    if (to.response) {
      to.response.reset();
      to.deadline = kNever;
    } else {
      to.unmaps.pop_front();
    }
  }
  watch(client->first, to);
}

Status SegmentServer::Loop::greet(Client& client, const Packet& packet) {
  const auto hello = segment_wire::read_as<segment_wire::Hello>(packet);
  if (!hello || hello->kind != Kind::kHello || hello->magic != segment_wire::kWireMagic) {
    return corrupt_data("a connection did not present itself as a reader");
  }
  segment_wire::Refused refused;
  Status failure;
  if (hello->version != segment_wire::kWireVersion) {
    failure = Status(Errc::kUnavailable, "reader " + std::to_string(hello->reader) +
                                             " has version " + std::to_string(hello->version) +
                                             ", not " + std::to_string(segment_wire::kWireVersion));
  } else {
    const Result<AdmittedReader> admitted = store_->admit(hello->reader, hello->token);
    if (admitted.ok()) {
      client.reader = admitted.value();
      client.number = hello->reader;
      client.deadline = kNever;
      const segment_wire::Welcome welcome{
          Kind::kWelcome, static_cast<std::uint32_t>(client.reader->index), store_->pool()};
      // The socket is empty, so it takes the message, unless it is closed.
      (void)segment_wire::send_packet(client.socket.get(), segment_wire::bytes_of(welcome));
      return {};
    }
    failure = admitted.status();
    refused.reason = failure.code() == Errc::kNotFound ? segment_wire::Refusal::kUnknownReader
                                                       : segment_wire::Refusal::kConnectedBefore;
  }
  (void)segment_wire::send_packet(client.socket.get(), segment_wire::bytes_of(refused));
  return failure;
}

Status SegmentServer::Loop::map_segment(Client& client, std::uint64_t segment) {
  auto memory = store_->map(client.reader->key, segment);
  if (!memory.ok() && memory.status().code() != Errc::kNotFound) {
    return memory.status();
  }
  client.response = {segment, memory.ok() ? std::move(memory).value() : nullptr};
  return {};
}

Status SegmentServer::Loop::follow(Client& client, const Packet& packet) {
  if (!client.reader) {
    return greet(client, packet);
  }
  const std::optional<Kind> kind = segment_wire::kind_of(packet);
  if (kind == Kind::kRelease) {
    if (const auto loans = segment_wire::read_release(packet)) {
      return store_->give_back(client.reader->key, *loans);
    }
  } else if (kind == Kind::kMap || kind == Kind::kUnmapped) {
    if (const auto message = segment_wire::read_as<AboutSegment>(packet)) {
      return kind == Kind::kMap ? map_segment(client, message->segment)
                                : store_->unmap(client.reader->key, message->segment);
    }
  }
  return corrupt_data("a message of kind " +
                      std::to_string(static_cast<std::uint32_t>(kind.value_or(Kind{}))) + " and " +
                      std::to_string(packet.size) + " bytes breaks the rules");
}

void SegmentServer::Loop::read_packets(Clients::iterator client) {
  Client& from = client->second;
  for (int i = 0; i < kPacketsAtOnce && !from.response; ++i) {
    Status status;
    switch (segment_wire::receive_packet(from.socket.get(), Descriptors::kNone, packet_)) {
      case Transfer::kDone: status = follow(from, packet_); break;
      case Transfer::kWouldBlock: i = kPacketsAtOnce; continue;
      case Transfer::kClosed: close(client, Status()); return;
      case Transfer::kMalformed: status = corrupt_data("a packet breaks the rules"); break;
    }
    if (!status.ok()) {
      close(client, status);
      return;
    }
  }
  send_waiting(client);
}

// -- connections
// -----------------------------------------------------------------------------------

void SegmentServer::Loop::report(const Status& reason) {
  if (options_.on_closed && !reason.ok()) {
    options_.on_closed(reason.with_context("segment server " + options_.path.native()));
  }
}

void SegmentServer::Loop::close(Clients::iterator client, const Status& reason) {
  if (client->second.reader) {
    store_->hang_up(client->second.reader->key);
    report(reason.with_context("closed the connection of reader " +
                               std::to_string(client->second.number)));
  } else {
    report(reason.with_context("refused a connection"));
  }
  clients_.erase(client);  // closing the socket ends watching it
}

void SegmentServer::Loop::watch(std::uint64_t id, Client& client) {
  std::uint32_t events = client.response ? 0 : static_cast<std::uint32_t>(EPOLLIN);
  if (client.response || !client.unmaps.empty()) {
    events |= static_cast<std::uint32_t>(EPOLLOUT);
  }
  if (events != client.watched) {
    client.watched = events;
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.socket.get(), &event);
  }
}

void SegmentServer::Loop::watch_listener(std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = kListener;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

void SegmentServer::Loop::accept_one(UniqueFd socket) {
  if (!is_same_user(socket.get())) {
    report(invalid_argument("refused a connection: it belongs to another user"));
    return;
  }
  const auto is_stranger = [](const auto& client) { return !client.second.reader; };
  if (std::ranges::count_if(clients_, is_stranger) == kMaxStrangers) {
    close(std::ranges::find_if(clients_, is_stranger),
          Status(Errc::kResourceExhausted, "too many did not present themselves as readers"));
  }
  const std::uint64_t id = ++last_id_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0) {
    Client& client = clients_[id];
    client.socket = std::move(socket);
    client.deadline = clock_.now() + options_.max_hello_wait;
    client.watched = event.events;
  }
}

void SegmentServer::Loop::accept_all() {
  for (int i = 0; i < kPacketsAtOnce; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.is_open()) {
      accept_one(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // The connection stays in the queue of the listener, which would wake this thread at once.
      const Status why = system_error(errno, "accept a connection", options_.path);
      report(why);
      if (options_.on_trouble) {
        options_.on_trouble(why);
      }
      watch_listener(0);
      accept_again_ = clock_.now() + kAcceptPause;
    }
    if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

void SegmentServer::Loop::follow_notices() {
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof(count));
  for (const ReaderNotice& notice : store_->take_notices()) {
    const auto client = std::ranges::find_if(clients_, [&](const auto& entry) {
      return entry.second.reader && entry.second.reader->key == notice.reader;
    });
    if (client == clients_.end()) {
      continue;
    }
    if (notice.kind == ReaderNotice::Kind::kDropped) {
      close(client, Status(Errc::kUnavailable, "the pool has dropped it"));
    } else {
      client->second.unmaps.push_back(notice.segment);
      send_waiting(client);
    }
  }
}

// -- the thread
// ------------------------------------------------------------------------------------

void SegmentServer::Loop::close_expired() {
  const TimePoint now = clock_.now();
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto expired = client++;
    if (expired->second.deadline <= now) {
      close(expired,
            Status(Errc::kTimeout, expired->second.reader ? "it did not take a segment in time"
                                                          : "it did not present itself in time"));
    }
  }
  if (accept_again_ <= now) {
    accept_again_ = kNever;
    watch_listener(EPOLLIN);
  }
}

int SegmentServer::Loop::wait_ms() const {
  TimePoint next = accept_again_;
  for (const auto& [id, client] : clients_) {
    next = std::min(next, client.deadline);
  }
  if (next == kNever) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - clock_.now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

void SegmentServer::Loop::handle(const epoll_event& event) {
  const std::uint64_t id = event.data.u64;  // a copy: the member need not be aligned
  if (id == kListener) {
    accept_all();
    return;
  }
  if (id == kWake) {
    follow_notices();
    return;
  }
  const auto client = clients_.find(id);
  if (client == clients_.end()) {
    return;  // closed since
  }
  if ((event.events & (EPOLLHUP | EPOLLERR)) != 0 && client->second.response) {
    close(client, Status());
  } else if ((event.events & EPOLLOUT) != 0) {
    send_waiting(client);
  } else {
    read_packets(client);
  }
}

void SegmentServer::Loop::run() {
  std::array<epoll_event, kEventsAtOnce> events{};
  while (!stopping_.load()) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, wait_ms());
    for (int i = 0; i < count; ++i) {
      handle(events.at(static_cast<std::size_t>(i)));
    }
    close_expired();
  }
}

Status SegmentServer::Loop::start() {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  bool watched = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) == 0;
  event.data.u64 = kWake;
  watched = watched && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0;
  if (!watched) {
    return system_error(errno, "watch the socket", options_.path);
  }
  store_->set_wake([this] {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));  // fails only if the thread is woken anyway
  });
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return {Errc::kResourceExhausted, options_.path.string() + ": cannot start a thread"};
  }
  return {};
}

SegmentServer::Loop::~Loop() {
  store_->set_wake({});
  if (thread_.joinable()) {
    stopping_.store(true);
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }
  while (!clients_.empty()) {
    close(clients_.begin(), Status());
  }
}

SegmentServer::SegmentServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

SegmentServer::~SegmentServer() = default;

Result<std::unique_ptr<SegmentServer>> SegmentServer::listen(SegmentPool& pool,
                                                             SegmentServerOptions options) {
  TIDEMILL_ASSIGN_OR_RETURN(ListeningSocket listener, listen_at(options.path));
  auto loop = std::make_unique<Loop>(pool.store_, std::move(options), std::move(listener));
  TIDEMILL_RETURN_IF_ERROR(loop->start());
  return std::unique_ptr<SegmentServer>(new SegmentServer(std::move(loop)));
}

}  // namespace tidemill::transport
