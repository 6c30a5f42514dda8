// SPDX-License-Identifier: Apache-2.0
#include "launcher/models/line_reader.hpp"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <ostream>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/file.hpp"

namespace tidemill::launcher {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10U;

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

Result<std::unique_ptr<LineReader>> LineReader::open(const std::string& path) {
  if (path == "-") {
    return std::unique_ptr<LineReader>(new LineReader("stdin", STDIN_FILENO));
  }
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return system_error(errno, "open it", path);
  }
  std::unique_ptr<LineReader> reader(new LineReader(path, descriptor));
  struct stat entry {};
  if (::fstat(descriptor, &entry) == 0 && S_ISDIR(entry.st_mode)) {
    return invalid_argument(path + ": is a directory, not a file of JSON lines");
  }
  return reader;
}

std::unique_ptr<LineReader> LineReader::of_text(std::string name, std::string text) {
  std::unique_ptr<LineReader> reader(new LineReader(std::move(name), -1));
  reader->buffer_ = std::move(text);
  reader->ended_ = true;
  return reader;
}

std::string LineReader::location() const {
  return descriptor_ < 0 ? name_ : name_ + ':' + std::to_string(number_ + 1);
}

LineReader::~LineReader() {
  if (descriptor_ > STDIN_FILENO) {
    ::close(descriptor_);
  }
}

bool LineReader::has_line() {
  const std::size_t end = buffer_.find('\n', scanned_);
  scanned_ = end == std::string::npos ? buffer_.size() : end;
  return end != std::string::npos;
}

Status LineReader::fill() {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() > kMaxLineBytes) {
    return invalid_argument(location() + ": longer than " + std::to_string(kMaxLineBytes >> 20U) +
                            " MiB");
  }
  std::array<char, kReadBytes> bytes{};
  ssize_t count = -1;
  do {
    count = ::read(descriptor_, bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    return system_error(errno, "read it", name_);
  }
  buffer_.append(bytes.data(), static_cast<std::size_t>(count));
  ended_ = count == 0;
  return {};
}

bool LineReader::ready() {
  while (!ended_ && !has_line()) {
    pollfd wanted{descriptor_, POLLIN, 0};
    if (::poll(&wanted, 1, 0) == 0) {
      return false;
    }
    if (!fill().ok()) {
      return true;  // `next` fails in the same way and reports it
    }
  }
  return true;
}

Result<std::optional<InputLine>> LineReader::next() {
  while (true) {
    while (!ended_ && !has_line()) {
      TIDEMILL_RETURN_IF_ERROR(fill());
    }
    const bool whole = has_line();
    if (!whole && begin_ == buffer_.size()) {
      return std::optional<InputLine>();
    }
    InputLine line{buffer_.substr(begin_, scanned_ - begin_), location(), index_};
    begin_ = scanned_ + (whole ? 1 : 0);
    scanned_ = begin_;
    if (line.text.size() > kMaxLineBytes) {
      return invalid_argument(line.location + ": longer than " +
                              std::to_string(kMaxLineBytes >> 20U) + " MiB");
    }
    ++number_;
    if (!is_blank(line.text)) {
      ++index_;
      return std::optional<InputLine>(std::move(line));
    }
  }
}

Result<Json> parse_line(const InputLine& line) {
  Result<Json> parsed = parse_json(line.text);
  if (!parsed.ok()) {
    return parsed.status().with_context(line.location);
  }
  if (parsed.value().if_object() == nullptr) {
    return invalid_argument(line.location + ": must be a JSON object");
  }
  return parsed;
}

Result<std::optional<std::vector<std::int32_t>>> read_ids(const Json& object,
                                                          const std::string& location) {
  const Json* member = object.find("ids");
  if (member == nullptr) {
    return std::optional<std::vector<std::int32_t>>();
  }
  const Json::Array* items = member->if_array();
  if (items == nullptr) {
    return invalid_argument(location + ": ids: must be an array of token ids");
  }
  std::vector<std::int32_t> ids;
  ids.reserve(items->size());
  for (const Json& item : *items) {
    const std::int64_t* id = item.if_integer();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<std::int32_t>::max()) {
      return invalid_argument(location + ": ids[" + std::to_string(ids.size()) +
                              "]: must be an integer from 0 to 2147483647");
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return std::optional<std::vector<std::int32_t>>(std::move(ids));
}

Status check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
                 const std::string& location) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return invalid_argument(location + ": ids[" + std::to_string(i) + "]: token " +
                              std::to_string(ids[i]) + " is outside the vocabulary of " +
                              std::to_string(vocab_size));
    }
  }
  return {};
}

Json ids_json(const std::vector<std::int32_t>& ids) {
  Json::Array items;
  items.reserve(ids.size());
  for (const std::int32_t id : ids) {
    items.emplace_back(id);
  }
  return items;
}

Status write_line(std::ostream& out, const Json& value) {
  out << value.to_line() << std::flush;
  if (!out.good()) {
    return Status(Errc::kUnavailable, "stdout: cannot be written");
  }
  return {};
}

Status process_lines(const std::string& path, std::ostream& out,
                     const std::function<Result<Json>(const InputLine&)>& process) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> reader, LineReader::open(path));
  while (true) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::optional<InputLine> line, reader->next());
    if (!line.has_value()) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Json result, process(*line));
    TIDEMILL_RETURN_IF_ERROR(write_line(out, result));
  }
}

}  // namespace tidemill::launcher
