// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/zmq_endpoint.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <string_view>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace tidemill::transport {
namespace {

constexpr std::string_view kIpc = "ipc://";
// Connections that ZeroMQ has not accepted yet. The system refuses more, which looks as if nothing
// listened.
constexpr int kBacklog = SOMAXCONN;

std::filesystem::path path_of(const std::string& endpoint) {
  return endpoint.substr(kIpc.size());
}

Status failed(const std::filesystem::path& path, std::string_view doing) {
  return {Errc::kUnavailable, path.string() + ": cannot " + std::string(doing) + ": " +
                                  std::generic_category().message(errno)};
}

// Returns a path of `name` that an address of a Unix socket can hold.
std::string short_path(const HeldDirectory& directory, const std::string& name) {
  std::string path = (directory.path() / name).string();
  if (path.size() < sizeof(sockaddr_un::sun_path)) {
    return path;
  }
  return "/proc/self/fd/" + std::to_string(directory.descriptor()) + "/" + name;
}

sockaddr_un socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(path, address.sun_path);
  return address;
}

UniqueFd new_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Checks that no process listens at the path and that it names nothing but a socket.
Status check_unused(const HeldDirectory& directory, const std::string& name) {
  const std::filesystem::path path = directory.path() / name;
  struct stat found {};
  if (::fstatat(directory.descriptor(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? Status() : failed(path, "look for a socket");
  }
  if (!S_ISSOCK(found.st_mode)) {
    return invalid_argument(path.string() + ": is not a socket; choose another path");
  }
  const UniqueFd socket = new_socket();
  const sockaddr_un address = socket_address(short_path(directory, name));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return {Errc::kUnavailable, path.string() + ": another process listens there"};
  }
  return errno == ECONNREFUSED || errno == ENOENT ? Status() : failed(path, "probe the socket");
}

// Returns a name that no other file has.
std::string temporary_name() {
  std::random_device random;
  std::string name(32, '\0');
  const int length = std::snprintf(name.data(), name.size(), ".zmq-%08x%08x", random(), random());
  name.resize(static_cast<std::size_t>(length));
  return name;
}

}  // namespace

Status check_endpoint(const std::string& endpoint) {
  if (!endpoint.starts_with(kIpc)) {
    return invalid_argument(endpoint + ": an endpoint is ipc:// and a path");
  }
  const std::filesystem::path path = path_of(endpoint);
  const std::string name = path.filename().string();
  if (!path.is_absolute() || name.empty() || name == "." || name == ".." ||
      endpoint.find('\0') != std::string::npos) {
    return invalid_argument(endpoint + ": an endpoint needs an absolute path of a file");
  }
  if (name.size() > kMaxSocketNameBytes) {
    return invalid_argument(endpoint + ": the file name is too long (at most " +
                            std::to_string(kMaxSocketNameBytes) + " bytes)");
  }
  return {};
}

Result<ZmqAddress> address_of(const std::string& endpoint) {
  const std::filesystem::path path = path_of(endpoint);
  TIDEMILL_ASSIGN_OR_RETURN(auto directory, HeldDirectory::open(path.parent_path()));
  std::string address = std::string(kIpc) + short_path(*directory, path.filename().string());
  return ZmqAddress{std::move(address), std::move(directory)};
}

Result<std::unique_ptr<SocketFile>> SocketFile::listen(const std::string& endpoint) {
  const std::filesystem::path path = path_of(endpoint);
  TIDEMILL_ASSIGN_OR_RETURN(auto directory, HeldDirectory::open(path.parent_path()));
  std::unique_ptr<SocketFile> file(new SocketFile(std::move(directory), path.filename().string()));
  TIDEMILL_RETURN_IF_ERROR(check_unused(*file->directory_, file->name_));
  TIDEMILL_RETURN_IF_ERROR(file->create());
  return file;
}

// Listens under a temporary name first, so that a process that finds the file can connect.
Status SocketFile::create() {
  const std::filesystem::path path = directory_->path() / name_;
  const int directory = directory_->descriptor();
  socket_ = new_socket();
  constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;
  // The mode of the socket becomes that of the file.
  if (!socket_.is_open() || ::fchmod(socket_.get(), kOwnerOnly) != 0) {
    return failed(path, "make a socket");
  }
  const std::string temporary = temporary_name();
  const sockaddr_un address = socket_address(short_path(*directory_, temporary));
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return failed(path, "create the socket");
  }
  struct stat made {};
  if (::fstatat(directory, temporary.c_str(), &made, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::listen(socket_.get(), kBacklog) != 0 ||
      ::renameat(directory, temporary.c_str(), directory, name_.c_str()) != 0) {
    Status status = failed(path, "listen");
    ::unlinkat(directory, temporary.c_str(), 0);
    return status;
  }
  device_ = made.st_dev;
  inode_ = made.st_ino;
  return {};
}

SocketFile::~SocketFile() {
  struct stat found {};
  if (inode_ != 0 &&
      ::fstatat(directory_->descriptor(), name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
      found.st_dev == device_ && found.st_ino == inode_) {
    ::unlinkat(directory_->descriptor(), name_.c_str(), 0);
  }
}

}  // namespace tidemill::transport
