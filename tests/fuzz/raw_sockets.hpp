// SPDX-License-Identifier: Apache-2.0
// Raw ends of Unix sockets for fuzz targets: they send packets with descriptors of any kind.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include "base/check.hpp"
#include "base/files/unique_fd.hpp"

namespace tidemill::fuzz {

/// Takes an input apart, from its start.
class InputReader {
public:
  explicit InputReader(std::string_view input) : rest_(input) {}
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  /// Returns the next byte, or 0 at the end.
  unsigned char byte() { return rest_.empty() ? 0 : static_cast<unsigned char>(bytes(1).front()); }
  /// Returns the next `size` bytes, or those that are left.
  std::string_view bytes(std::size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  [[nodiscard]] std::string_view rest() const { return rest_; }

private:
  std::string_view rest_;
};

/// Repeats a system call that a signal interrupts. libFuzzer has a timer.
template <class Call>
ssize_t uninterrupted(Call call) {
  ssize_t result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

/// Receives a packet, or the next bytes. Returns their number, and 0 or less at the end.
inline ssize_t receive_raw(int socket, std::span<char> bytes) {
  return uninterrupted([&] { return ::recv(socket, bytes.data(), bytes.size(), 0); });
}

/// Returns a memory file with this content and these seals.
inline UniqueFd memory_of(std::string_view content, std::size_t size, int seals) {
  UniqueFd file(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::size_t written = std::min(content.size(), size);
  TIDEMILL_CHECK(::ftruncate(file.get(), static_cast<off_t>(size)) == 0 &&
                 ::pwrite(file.get(), content.data(), written, 0) ==
                     static_cast<ssize_t>(written) &&
                 ::fcntl(file.get(), F_ADD_SEALS, seals) == 0)
      << errno;
  return file;
}

/// Returns a socket after `use`, such as `::connect`, with the address of `path`.
template <class Use>
UniqueFd socket_at(const std::filesystem::path& path, int type, Use use) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(path.native(), static_cast<char*>(address.sun_path));
  TIDEMILL_CHECK(use(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
                 0)
      << errno;
  return socket;
}

/// Returns a socket that is connected to the one that listens at `path`.
inline UniqueFd connect_to(const std::filesystem::path& path, int type) {
  return socket_at(path, type, ::connect);
}

/// Returns a socket that listens at `path`.
inline UniqueFd listen_at(const std::filesystem::path& path, int type) {
  UniqueFd socket = socket_at(path, type, ::bind);
  TIDEMILL_CHECK(::listen(socket.get(), SOMAXCONN) == 0) << errno;
  return socket;
}

/// Sends a packet with any number of descriptors. Returns false if the other end is closed.
inline bool send_raw(int socket, std::string_view content, const std::vector<int>& descriptors) {
  constexpr std::size_t kMaxDescriptors = 8;
  TIDEMILL_CHECK(descriptors.size() <= kMaxDescriptors);
  iovec part{const_cast<char*>(content.data()), content.size()};  // it is only read
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t bytes = descriptors.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  }
  return uninterrupted([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL); }) >= 0;
}

}  // namespace tidemill::fuzz
