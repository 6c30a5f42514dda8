// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_rendezvous.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"

namespace tidemill::transport::shm {
namespace {

static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 24);
static_assert(std::is_trivially_copyable_v<HelloReply> && sizeof(HelloReply) == 16);

}  // namespace

// -- the handshake -------------------------------------------------------------------------------

Status send_hello(int socket, const Hello& hello, int memory) {
  iovec content{const_cast<Hello*>(&hello), sizeof(hello)};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory, sizeof(memory));
  if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(hello)) {
    return {Errc::kUnavailable, "the acceptor has closed the connection"};
  }
  return {};
}

Status receive_reply(int socket, TimePoint deadline) {
  if (!wait_to_read(socket, deadline)) {
    return {Errc::kUnavailable, "the acceptor did not reply in time"};
  }
  HelloReply reply;
  const ssize_t size = ::recv(socket, &reply, sizeof(reply), MSG_DONTWAIT);
  if (size <= 0) {
    return {Errc::kUnavailable, "the acceptor has refused the connection"};
  }
  if (size != sizeof(reply) || reply.magic != kHandshakeMagic) {
    return {Errc::kUnavailable, "the process that listens there is no acceptor"};
  }
  switch (reply.outcome) {
    case HelloOutcome::kAccepted: return {};
    case HelloOutcome::kOtherVersion:
      return {Errc::kUnimplemented, "the acceptor has version " + std::to_string(reply.version) +
                                        " of the handshake, this program version " +
                                        std::to_string(kHandshakeVersion)};
    case HelloOutcome::kNoResources:
      return {Errc::kResourceExhausted,
              "the process of the acceptor lacks memory, descriptors or threads"};
    case HelloOutcome::kBadMemory: break;
  }
  return {Errc::kUnavailable, "the acceptor has refused the shared memory"};
}

Result<ReceivedHello> receive_hello(int socket) {
  ReceivedHello received;
  iovec content{&received.hello, sizeof(received.hello)};
  // Because of its alignment, the space for one descriptor holds two.
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  std::size_t num_descriptors = 0;
  for (cmsghdr* header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t bytes = header->cmsg_len - CMSG_LEN(0);
    for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + at, sizeof(descriptor));
      received.memory = UniqueFd(descriptor);  // closes the one before
      ++num_descriptors;
    }
  }
  if (size == sizeof(Hello) && (message.msg_flags & MSG_CTRUNC) != 0 && num_descriptors == 0) {
    return Status(Errc::kResourceExhausted, "no descriptor is left for a connection");
  }
  if (size != sizeof(Hello) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      received.hello.magic != kHandshakeMagic || num_descriptors != 1) {
    return corrupt_data("not a hello");
  }
  return received;
}

Status send_reply(int socket, HelloOutcome outcome) {
  HelloReply reply;
  reply.outcome = outcome;
  if (::send(socket, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(reply)) {
    return {Errc::kUnavailable, "the connector has closed the connection"};
  }
  return {};
}

}  // namespace tidemill::transport::shm
