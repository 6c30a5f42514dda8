// SPDX-License-Identifier: Apache-2.0
// Fuzzes the messages between a segment server and its readers. An even first byte: the rest are
// packets from a reader to a server. Odd: packets from a server to a reader. A packet is a byte
// with its size, a byte that chooses its descriptors, and its content.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <poll.h>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fuzz/raw_sockets.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/support/temporary_directory.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_reader.hpp"
#include "transport/segments/segment_server.hpp"
#include "transport/segments/segment_wire.hpp"

namespace tidemill::fuzz {
namespace {

using namespace transport;  // NOLINT(google-build-using-namespace): most names here are its own
using segment_wire::Kind;
using segment_wire::Packet;
using segment_wire::Transfer;

constexpr std::uint64_t kPool = 7;
constexpr std::uint32_t kReader = 1;
constexpr std::size_t kBufferBytes = 10'000;
constexpr auto kLongTime = std::chrono::hours(1);

ReaderToken token() {
  ReaderToken token{};
  token.fill(std::byte{0x5a});
  return token;
}

std::filesystem::path socket_path() {
  static const test::TemporaryDirectory directory(test::memory_directory_path());
  return directory.path() / "s";
}

std::ptrdiff_t num_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// -- a reader that breaks the rules ---------------------------------------------------------------

void send_packets(int socket, InputReader& input) {
  while (!input.empty()) {
    const std::size_t size = input.byte();
    std::vector<UniqueFd> files;
    std::vector<int> descriptors;
    for (unsigned count = input.byte() & 3U; count > 0; --count) {
      files.emplace_back(::eventfd(0, EFD_CLOEXEC));
      descriptors.push_back(files.back().get());
    }
    if (!send_raw(socket, input.bytes(size), descriptors)) {
      return;
    }
  }
}

// Checks a packet of the server. Returns whether it has admitted the reader.
bool check_response(const Packet& packet, bool admitted) {
  const std::optional<Kind> kind = segment_wire::kind_of(packet);
  require(kind.has_value(), "a response has a kind");
  if (kind == Kind::kWelcome || kind == Kind::kRefused) {
    require(!admitted, "a server responds to one hello");
    return kind == Kind::kWelcome;
  }
  require(admitted, "a server tells a stranger nothing");
  require(packet.descriptor.is_open() == (kind == Kind::kSegment),
          "a segment comes with its memory, and nothing else does");
  require(kind == Kind::kSegment || kind == Kind::kUnlent || kind == Kind::kUnmap,
          "a server sends its own messages only");
  return true;
}

void read_with(InputReader input) {
  SegmentPoolOptions sizes;
  sizes.pool = kPool;
  sizes.max_bytes = 1 << 20;
  sizes.max_free_bytes = 1 << 20;
  sizes.shared_segment_bytes = 64 << 10;
  SegmentPool pool(sizes);
  require_ok(pool.add_reader({kReader, token(), 1 << 20}), "there is room for a reader");
  SegmentServerOptions options;
  options.path = socket_path();
  options.max_hello_wait = kLongTime;
  options.max_send_wait = kLongTime;
  options.on_closed = [](const Status& why) { require_refusal(why, "segment server "); };
  auto server = SegmentServer::listen(pool, options);
  require_ok(server.status(), "a process can listen");
  const auto fill = [](std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); };
  std::optional<Buffer> buffer = pool.allocate(kBufferBytes, DType::kU8, fill).value();
  require_ok(pool.lend(*buffer, kReader), "a buffer can be lent");
  const std::uint64_t used = pool.use().used_bytes;

  const UniqueFd socket = connect_to(options.path, SOCK_SEQPACKET);
  send_packets(socket.get(), input);
  ::shutdown(socket.get(), SHUT_WR);
  bool admitted = false;
  const auto packet = std::make_unique<Packet>();
  while (true) {
    const Transfer got =
        segment_wire::receive_packet(socket.get(), segment_wire::Descriptors::kOne, *packet);
    if (got == Transfer::kClosed) {
      break;
    }
    if (got == Transfer::kWouldBlock) {
      pollfd event{socket.get(), POLLIN, 0};
      (void)::poll(&event, 1, -1);
      continue;
    }
    require(got == Transfer::kDone, "a response is well-formed");
    admitted = check_response(*packet, admitted);
  }
  require(pool.use().used_bytes == used, "nothing ends a buffer but its owner");
  if (admitted) {
    require(pool.lent_bytes(kReader) == 0, "the loans of a reader end with its connection");
    buffer.reset();
    require(pool.use().used_bytes == 0, "a buffer without loans ends with its owner");
  }
}

// -- a server that breaks the rules ---------------------------------------------------------------

// Returns a descriptor of a kind that a number chooses. Most are the memory of a segment.
UniqueFd segment_of(unsigned kind, std::string_view content) {
  constexpr std::size_t kPage = 4096;
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  switch (kind) {
    case 4: return memory_of(content, 2 * kPage, 0);
    case 5: return memory_of(content, kPage + 3, kSealed);
    case 6: return UniqueFd(::eventfd(0, EFD_CLOEXEC));
    case 7: return memory_of(content, 2 * kPage, F_SEAL_SHRINK | F_SEAL_SEAL);
    default: return memory_of(content, 2 * kPage, kSealed);
  }
}

// Sends the packets of the input. Those after the first wait for a message of the reader.
void serve_with(int listener, InputReader input) {
  const UniqueFd client(static_cast<int>(
      uninterrupted([&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); })));
  std::array<char, segment_wire::kMaxPacketBytes> message{};
  bool goes_on = receive_raw(client.get(), message) > 0;  // the hello
  for (bool first = true; goes_on && !input.empty(); first = false) {
    const std::size_t size = input.byte();
    const unsigned choice = input.byte();
    const std::string_view content = input.bytes(size);
    std::vector<UniqueFd> files;
    std::vector<int> descriptors;
    for (unsigned count = choice & 3U; count > 0; --count) {
      files.push_back(segment_of((choice >> 2U) & 7U, input.rest()));
      descriptors.push_back(files.back().get());
    }
    goes_on = send_raw(client.get(), content, descriptors);
    if (first && goes_on) {
      goes_on = receive_raw(client.get(), message) > 0;
    }
  }
  // If the reader still waits, only the end of the connection ends that. Otherwise it may resolve
  // more meanwhile.
  constexpr int kWaitMs = 2;
  pollfd event{client.get(), POLLIN, 0};
  (void)::poll(&event, 1, kWaitMs);
}

// Reads a buffer, if the server gives it.
void resolve(SegmentReader& reader, const BufferIdentity& wanted) {
  const auto buffer = reader.resolve(wanted);
  if (!buffer.ok()) {
    require_refusal(buffer.status(), to_string(wanted));
    return;
  }
  const auto bytes = buffer.value().bytes();
  require(bytes.size() == wanted.length, "a buffer has the size that was asked for");
  volatile std::byte all{};
  for (const std::byte byte : bytes) {
    all = all | byte;  // its memory can be read
  }
}

void serve_to_reader(InputReader input) {
  const std::filesystem::path path = socket_path();
  const UniqueFd listener = listen_at(path, SOCK_SEQPACKET);
  std::jthread server([&] { serve_with(listener.get(), input); });
  SegmentReaderOptions options;
  options.path = path;
  options.reader = kReader;
  options.token = token();
  options.max_connect_wait = kLongTime;
  options.max_segment_wait = kLongTime;
  {
    auto reader = SegmentReader::connect(options);
    if (!reader.ok()) {
      require_refusal(reader.status(), path.native());
    } else {
      for (const std::uint64_t length : {std::uint64_t{4096}, std::uint64_t{1}}) {
        resolve(*reader.value(), {reader.value()->pool(), 1, 1, 0, length, DType::kU8});
      }
    }
  }
  ::unlink(path.c_str());
}

}  // namespace

void segment_handshake(std::string_view input) {
  const std::ptrdiff_t before = num_descriptors();
  InputReader reader(input);
  if (reader.byte() % 2 == 0) {
    read_with(reader);
  } else {
    serve_to_reader(reader);
  }
  require(num_descriptors() == before, "no descriptor is left open");
}

}  // namespace tidemill::fuzz
