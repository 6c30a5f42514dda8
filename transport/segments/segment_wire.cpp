// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_wire.hpp"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace tidemill::transport::segment_wire {
namespace {

// Because of its alignment, the space for one descriptor holds two.
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int));

// Keeps the last descriptor of a message and closes those before it. Returns their number.
std::size_t take_descriptors(msghdr& message, UniqueFd& last) {
  std::size_t count = 0;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr;
       rights = CMSG_NXTHDR(&message, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t bytes = rights->cmsg_len - CMSG_LEN(0);
    for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(rights) + at, sizeof(descriptor));
      last = UniqueFd(descriptor);
      ++count;
    }
  }
  return count;
}

Transfer failed_transfer() {
  return errno == EAGAIN || errno == EWOULDBLOCK ? Transfer::kWouldBlock : Transfer::kClosed;
}

}  // namespace

Transfer send_packet(int socket, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // it is only read
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(descriptor));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0 ? Transfer::kDone : failed_transfer();
}

Transfer receive_packet(int socket, Descriptors allowed, Packet& packet) {
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  if (allowed == Descriptors::kOne) {  // without room for them, the kernel closes descriptors
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  ssize_t received = 0;
  do {
    received = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    return failed_transfer();
  }
  packet.size = static_cast<std::size_t>(received);
  packet.descriptor.reset();
  const std::size_t num_descriptors = take_descriptors(header, packet.descriptor);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || num_descriptors > 1) {
    packet.descriptor.reset();
    return Transfer::kMalformed;
  }
  // The end of the connection reads as an empty packet; no message is empty.
  return received == 0 ? Transfer::kClosed : Transfer::kDone;
}

std::optional<Kind> kind_of(const Packet& packet) {
  if (packet.size < sizeof(Kind)) {
    return std::nullopt;
  }
  Kind kind{};
  std::memcpy(&kind, packet.bytes.data(), sizeof(kind));
  return kind;
}

std::optional<std::span<const ReturnedLoans>> read_release(const Packet& packet) {
  Release release;
  if (packet.size < sizeof(release)) {
    return std::nullopt;
  }
  std::memcpy(&release, packet.bytes.data(), sizeof(release));
  if (release.count == 0 || release.count > kMaxReturned ||
      packet.size != sizeof(release) + release.count * sizeof(ReturnedLoans)) {
    return std::nullopt;
  }
  const std::byte* const first = packet.bytes.data() + sizeof(release);
  return std::span(reinterpret_cast<const ReturnedLoans*>(first), release.count);
}

}  // namespace tidemill::transport::segment_wire
