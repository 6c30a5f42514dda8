// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/files/unique_fd.hpp"
#include "transport/segments/segment_memory.hpp"
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

Status failed_resolve(const BufferIdentity& identity, Errc code, const std::string& fact) {
  return {code, to_string(identity) + ": " + fact};
}

}  // namespace

// What a reader, its thread and its buffers share. The connection closes when the last of them is
// gone.
class SegmentReader::Core final : public std::enable_shared_from_this<Core> {
public:
  Core(SegmentReaderOptions options, UniqueFd socket, UniqueFd wake,
       const segment_wire::Welcome& welcome)
      : options_(std::move(options)),
        index_(welcome.index),
        pool_(welcome.pool),
        socket_(std::move(socket)),
        wake_(std::move(wake)) {}

  Status start() {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      return {Errc::kResourceExhausted, options_.path.native() + ": cannot start a thread"};
    }
    return {};
  }
  void stop();
  [[nodiscard]] std::uint64_t pool() const noexcept { return pool_; }
  [[nodiscard]] Result<Buffer> resolve(const BufferIdentity& identity);

private:
  using Lock = std::unique_lock<std::mutex>;
  // A segment and the loans of its current generation.
  struct Mapped {
    Mapped(std::uint64_t number, SegmentMemory mapping)
        : segment(number), memory(std::move(mapping)) {}
    const std::uint64_t segment;
    const SegmentMemory memory;
    std::uint32_t generation = 0;
    std::uint32_t resolved = 0;  // loans that were used
    std::uint32_t returned = 0;  // of these, loans that the server need not be told of any more
    std::uint32_t dropped = 0;   // loans that the server is to be told of
  };
  // A segment for which threads wait.
  struct Request {
    Status failure;
    bool done = false;
  };
  class Loan;

  void give_back(const std::shared_ptr<Mapped>& mapped);
  [[nodiscard]] Result<std::shared_ptr<Mapped>> find_or_ask(Lock& lock,
                                                            const BufferIdentity& identity);
  [[nodiscard]] Status use_loan(Mapped& mapped, const BufferIdentity& identity) const;
  void wake_thread();

  // Of the thread.
  void run();
  [[nodiscard]] Status send_all();
  void collect();
  [[nodiscard]] Status receive_all();
  [[nodiscard]] Status follow(Packet& packet);
  // Returns whether a thread has asked for the segment.
  [[nodiscard]] bool take_segment(const segment_wire::Segment& message, UniqueFd descriptor);
  void finish_request(std::uint64_t segment, const Status& failure);
  void drop_segment(std::uint64_t segment);
  void lose(const Status& reason);

  const SegmentReaderOptions options_;
  const std::size_t index_;
  const std::uint64_t pool_;

  // Of the thread.
  UniqueFd socket_;
  std::deque<std::vector<std::byte>> outgoing_;
  Packet packet_{};

  UniqueFd wake_;
  std::mutex mutex_;  // guards everything below
  std::unordered_map<std::uint64_t, std::shared_ptr<Mapped>> segments_;
  std::map<std::uint64_t, std::shared_ptr<Request>> requests_;
  std::condition_variable request_done_;
  std::vector<std::shared_ptr<Mapped>> with_dropped_;  // whose `dropped` is not 0
  std::vector<AboutSegment> to_send_;
  bool thread_woken_ = false;  // and it has not collected since
  bool stopping_ = false;
  Status lost_;
  std::thread thread_;
};

// What a resolved buffer owns.
class SegmentReader::Core::Loan {
public:
  Loan(std::shared_ptr<Core> core, std::shared_ptr<Mapped> mapped)
      : core_(std::move(core)), mapped_(std::move(mapped)) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { core_->give_back(mapped_); }

private:
  std::shared_ptr<Core> core_;
  std::shared_ptr<Mapped> mapped_;
};

// -- resolving
// -------------------------------------------------------------------------------------

void SegmentReader::Core::wake_thread() {
  if (!std::exchange(thread_woken_, true)) {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));  // fails only if the thread is woken anyway
  }
}

void SegmentReader::Core::give_back(const std::shared_ptr<Mapped>& mapped) {
  const Lock lock(mutex_);
  if (stopping_ || !lost_.ok()) {
    return;  // the connection hangs up, which returns all loans
  }
  if (mapped->dropped++ == 0) {
    with_dropped_.push_back(mapped);
    wake_thread();
  }
}

Result<std::shared_ptr<SegmentReader::Core::Mapped>> SegmentReader::Core::find_or_ask(
    Lock& lock, const BufferIdentity& identity) {
  const auto found = segments_.find(identity.segment);
  if (found != segments_.end()) {
    return found->second;
  }
  std::shared_ptr<Request>& asked = requests_[identity.segment];
  if (asked == nullptr) {
    asked = std::make_shared<Request>();
    to_send_.push_back({Kind::kMap, 0, identity.segment});
    wake_thread();
  }
  const std::shared_ptr<Request> request = asked;
  const auto deadline = std::chrono::steady_clock::now() + options_.max_segment_wait;
  if (!request_done_.wait_until(lock, deadline, [&] { return request->done || !lost_.ok(); })) {
    return failed_resolve(identity, Errc::kTimeout, "the segment server did not respond in time");
  }
  if (!lost_.ok()) {
    return lost_.with_context(to_string(identity));
  }
  if (!request->failure.ok()) {
    return request->failure.with_context(to_string(identity));
  }
  const auto mapped = segments_.find(identity.segment);
  if (mapped == segments_.end()) {
    return failed_resolve(identity, Errc::kNotFound, "its segment was given back");
  }
  return mapped->second;
}

Status SegmentReader::Core::use_loan(Mapped& mapped, const BufferIdentity& identity) const {
  const std::uint64_t capacity = mapped.memory.bytes().size();
  if (identity.offset > capacity || identity.length > capacity - identity.offset) {
    return failed_resolve(identity, Errc::kInvalidArgument,
                          "is not inside its segment of " + std::to_string(capacity) + " bytes");
  }
  const LoanWord word = mapped.memory.loan_word(index_);
  if (word.generation > identity.generation) {
    return failed_resolve(identity, Errc::kStaleVersion,
                          "its segment is used again; it was not lent to this reader");
  }
  if (word.generation != mapped.generation && word.generation == identity.generation) {
    if (mapped.resolved != mapped.returned) {
      return failed_resolve(identity, Errc::kCorruptData,
                            "its segment was used again while this reader had loans");
    }
    mapped.generation = word.generation;
    mapped.resolved = 0;
    mapped.returned = 0;
  }
  if (word.generation != identity.generation || mapped.resolved >= word.lent) {
    return failed_resolve(identity, Errc::kNotFound, "this reader has no loan of it left");
  }
  ++mapped.resolved;
  return {};
}

Result<Buffer> SegmentReader::Core::resolve(const BufferIdentity& identity) {
  if (identity.pool != pool_) {
    return failed_resolve(identity, Errc::kNotFound, "is not of pool " + std::to_string(pool_));
  }
  Lock lock(mutex_);
  if (!lost_.ok()) {
    return lost_.with_context(to_string(identity));
  }
  TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<Mapped> mapped, find_or_ask(lock, identity));
  TIDEMILL_RETURN_IF_ERROR(use_loan(*mapped, identity));
  lock.unlock();
  const std::span<const std::byte> bytes =
      mapped->memory.bytes().subspan(identity.offset, identity.length);
  return Buffer::of_pool(std::make_shared<const Loan>(shared_from_this(), std::move(mapped)), bytes,
                         identity);
}

// -- sending
// ---------------------------------------------------------------------------------------

void SegmentReader::Core::collect() {
  const Lock lock(mutex_);
  thread_woken_ = false;
  const auto queue = [&](std::span<const std::byte> bytes) {
    return &outgoing_.emplace_back(bytes.begin(), bytes.end());
  };
  for (const AboutSegment& message : std::exchange(to_send_, {})) {
    queue(segment_wire::bytes_of(message));
  }
  const std::span<const std::shared_ptr<Mapped>> all = with_dropped_;
  for (std::size_t begin = 0; begin < all.size(); begin += segment_wire::kMaxReturned) {
    const auto part = all.subspan(begin, std::min(segment_wire::kMaxReturned, all.size() - begin));
    const segment_wire::Release header{Kind::kRelease, static_cast<std::uint32_t>(part.size())};
    std::vector<std::byte>* const message = queue(segment_wire::bytes_of(header));
    for (const std::shared_ptr<Mapped>& mapped : part) {
      const ReturnedLoans loans{mapped->segment, mapped->generation, mapped->dropped};
      const auto bytes = segment_wire::bytes_of(loans);
      message->insert(message->end(), bytes.begin(), bytes.end());
      mapped->returned += std::exchange(mapped->dropped, 0);
    }
  }
  with_dropped_.clear();
}

Status SegmentReader::Core::send_all() {
  while (true) {
    if (outgoing_.empty()) {
      collect();
    }
    if (outgoing_.empty()) {
      return {};
    }
    const Transfer sent = segment_wire::send_packet(socket_.get(), outgoing_.front());
    if (sent == Transfer::kWouldBlock) {
      return {};
    }
    if (sent != Transfer::kDone) {
      return {Errc::kUnavailable, "the segment server has closed the connection"};
    }
    outgoing_.pop_front();
  }
}

// -- receiving
// -------------------------------------------------------------------------------------

void SegmentReader::Core::finish_request(std::uint64_t segment, const Status& failure) {
  const auto found = requests_.find(segment);
  if (found != requests_.end()) {
    found->second->done = true;
    found->second->failure = failure;
    requests_.erase(found);
    request_done_.notify_all();
  }
}

bool SegmentReader::Core::take_segment(const segment_wire::Segment& message, UniqueFd descriptor) {
  Result<SegmentMemory> memory = SegmentMemory::map(std::move(descriptor), message.capacity);
  const Status mapped = memory.status();
  const Lock lock(mutex_);
  if (!requests_.contains(message.segment)) {
    return false;
  }
  if (mapped.ok()) {
    segments_.emplace(message.segment,
                      std::make_shared<Mapped>(message.segment, std::move(memory).value()));
  } else {
    to_send_.push_back({Kind::kUnmapped, 0, message.segment});
  }
  finish_request(message.segment, mapped);
  return true;
}

void SegmentReader::Core::drop_segment(std::uint64_t segment) {
  Lock lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) {
    return;  // it could not be mapped, which the server was told
  }
  std::shared_ptr<Mapped> dropped = std::move(found->second);
  segments_.erase(found);
  lock.unlock();
  dropped.reset();  // unmaps it before the server is told
  lock.lock();
  to_send_.push_back({Kind::kUnmapped, 0, segment});
}

Status SegmentReader::Core::follow(Packet& packet) {
  const auto segment = segment_wire::read_as<segment_wire::Segment>(packet);
  const auto about = segment_wire::read_as<AboutSegment>(packet);
  if (segment && segment->kind == Kind::kSegment && packet.descriptor.is_open()) {
    if (take_segment(*segment, std::move(packet.descriptor))) {
      return {};
    }
  } else if (about && about->kind == Kind::kUnlent) {
    const Lock lock(mutex_);
    finish_request(about->segment, Status(Errc::kNotFound, "is not lent to this reader"));
    return {};
  } else if (about && about->kind == Kind::kUnmap) {
    drop_segment(about->segment);
    return {};
  }
  return corrupt_data("the segment server has sent a message that breaks the rules");
}

Status SegmentReader::Core::receive_all() {
  while (true) {
    switch (segment_wire::receive_packet(socket_.get(), Descriptors::kOne, packet_)) {
      case Transfer::kDone: TIDEMILL_RETURN_IF_ERROR(follow(packet_)); break;
      case Transfer::kWouldBlock: return {};
      case Transfer::kClosed:
        return {Errc::kUnavailable, "the segment server has closed the connection"};
      case Transfer::kMalformed:
        return corrupt_data("the segment server has sent a packet that breaks the rules");
    }
  }
}

// -- the thread
// ------------------------------------------------------------------------------------

void SegmentReader::Core::lose(const Status& reason) {
  const Status lost(Errc::kUnavailable, options_.path.native() + ": " + reason.message());
  {
    const Lock lock(mutex_);
    lost_ = lost;
    with_dropped_.clear();
    request_done_.notify_all();
  }
  socket_.reset();
  if (options_.on_lost) {
    options_.on_lost(lost);
  }
}

void SegmentReader::Core::run() {
  Status status;
  while (status.ok()) {
    status = send_all();
    {
      const Lock lock(mutex_);
      if (stopping_) {
        return;  // the connection stays open for the buffers that are left
      }
    }
    if (!status.ok()) {
      break;
    }
    std::array<pollfd, 2> events{};
    events[0] = {socket_.get(), POLLIN, 0};
    if (!outgoing_.empty()) {
      events[0].events = POLLIN | POLLOUT;
    }
    events[1] = {wake_.get(), POLLIN, 0};
    (void)::poll(events.data(), events.size(), -1);  // each change has an event
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof(count));
    status = receive_all();
  }
  lose(status);
}

void SegmentReader::Core::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  }
  thread_.join();
}

// -- connecting
// ------------------------------------------------------------------------------------

namespace {

Status no_server(const std::filesystem::path& path, const std::string& fact) {
  return {Errc::kUnavailable, path.native() + ": " + fact};
}

// Connects, and waits for at most `max_wait` if the server does not accept at once.
Result<UniqueFd> open_connection(const std::filesystem::path& path, Duration max_wait) {
  const auto at = SocketPath::open(path);
  if (at.status().code() == Errc::kNotFound) {
    return no_server(path, "there is no such directory");
  }
  TIDEMILL_RETURN_IF_ERROR(at.status());
  TIDEMILL_ASSIGN_OR_RETURN(UniqueFd socket,
                            connect_socket(at.value(), SystemClock().now() + max_wait));
  if (!is_same_user(socket.get())) {
    return no_server(path, "the segment server belongs to another user");
  }
  return socket;
}

Result<segment_wire::Welcome> read_welcome(const std::filesystem::path& path,
                                           const Packet& packet) {
  const auto welcome = segment_wire::read_as<segment_wire::Welcome>(packet);
  if (welcome && welcome->kind == Kind::kWelcome && welcome->index < kMaxSegmentReaders) {
    return *welcome;
  }
  const auto refused = segment_wire::read_as<segment_wire::Refused>(packet);
  if (!refused || refused->kind != Kind::kRefused) {
    return no_server(path, "it is not a segment server");
  }
  switch (refused->reason) {
    case segment_wire::Refusal::kUnknownReader:
      return Status(Errc::kNotFound,
                    path.native() + ": the pool has no such reader with this token");
    case segment_wire::Refusal::kConnectedBefore:
      return no_server(path, "this reader has connected before");
    case segment_wire::Refusal::kVersion: break;
  }
  return no_server(path, "the segment server has version " + std::to_string(refused->version) +
                             ", not " + std::to_string(segment_wire::kWireVersion));
}

// Presents the reader and returns the response.
Result<segment_wire::Welcome> present(const SegmentReaderOptions& options, int socket,
                                      std::chrono::steady_clock::time_point deadline) {
  segment_wire::Hello hello;
  hello.reader = options.reader;
  hello.token = options.token;
  // If the server has closed the connection already, it may have said why.
  (void)segment_wire::send_packet(socket, segment_wire::bytes_of(hello));
  while (true) {
    Packet packet{};
    const Transfer received = segment_wire::receive_packet(socket, Descriptors::kNone, packet);
    if (received == Transfer::kDone) {
      return read_welcome(options.path, packet);
    }
    if (received != Transfer::kWouldBlock) {
      return no_server(options.path, "the segment server has closed the connection");
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    if (left <= 0) {
      return no_server(options.path, "the segment server did not respond in time");
    }
    pollfd event{socket, POLLIN, 0};
    const auto wait_ms = std::min<std::int64_t>(left, std::numeric_limits<int>::max());
    (void)::poll(&event, 1, static_cast<int>(wait_ms));
  }
}

}  // namespace

SegmentReader::SegmentReader(std::shared_ptr<Core> core) : core_(std::move(core)) {}

SegmentReader::~SegmentReader() {
  core_->stop();
}

Result<std::unique_ptr<SegmentReader>> SegmentReader::connect(const SegmentReaderOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + options.max_connect_wait;
  TIDEMILL_ASSIGN_OR_RETURN(UniqueFd socket,
                            open_connection(options.path, options.max_connect_wait));
  TIDEMILL_ASSIGN_OR_RETURN(const segment_wire::Welcome welcome,
                            present(options, socket.get(), deadline));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) {
    return Status(Errc::kResourceExhausted,
                  options.path.native() + ": " + std::generic_category().message(errno));
  }
  auto core = std::make_shared<Core>(options, std::move(socket), std::move(wake), welcome);
  TIDEMILL_RETURN_IF_ERROR(core->start());
  return std::unique_ptr<SegmentReader>(new SegmentReader(std::move(core)));
}

std::uint64_t SegmentReader::pool() const noexcept {
  return core_->pool();
}

Result<Buffer> SegmentReader::resolve(const BufferIdentity& identity) {
  return core_->resolve(identity);
}

}  // namespace tidemill::transport
