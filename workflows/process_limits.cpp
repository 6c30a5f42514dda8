// SPDX-License-Identifier: Apache-2.0
#include "workflows/process_limits.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/text/mebibytes.hpp"
#include "base/thread_limit.hpp"
#include "workflows/process_memory.hpp"

namespace tidemill::workflows {
namespace {

// Returns the number in `file`, or nothing if it holds something else, such as "max".
std::optional<std::int64_t> read_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

std::optional<std::int64_t> finite_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  constexpr auto kMaxLimit = static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(limit.rlim_cur, kMaxLimit));
}

std::int64_t num_open_files() {
  std::error_code ignored;
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd", ignored),
                       std::filesystem::directory_iterator());
}

std::int64_t machine_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? std::int64_t{pages} * page
                               : std::numeric_limits<std::int64_t>::max();
}

// Returns the size of the stack that a new thread gets.
std::int64_t stack_bytes() {
  constexpr std::int64_t kWithoutLimit = std::int64_t{2} << 20U;
  return finite_limit(RLIMIT_STACK).value_or(kWithoutLimit);
}

}  // namespace

MemoryLimit group_memory_limit(const ControlGroupFiles& files) {
  MemoryLimit least;
  for (const ControlGroup& group : control_groups(files, "memory")) {
    const std::filesystem::path path =
        group.folder / (group.version == 2 ? "memory.max" : "memory.limit_in_bytes");
    const std::optional<std::int64_t> limit = read_number(path);
    if (limit.has_value() && *limit < least.bytes) {
      least = {*limit, path.string()};
    }
  }
  return least;
}

std::optional<std::int64_t> plan_limit(const ReservedMemory& memory) {
  if (!memory.limit.has_value()) {
    return std::nullopt;
  }
  const std::int64_t left = *memory.limit - memory.reserved - memory.later_stacks;
  return std::max<std::int64_t>(left + memory.program, 0);
}

MemoryLimit process_memory_limit(int threads) {
  MemoryLimit least = group_memory_limit({});
  const auto consider = [&least](std::optional<std::int64_t> bytes, const char* name) {
    if (bytes.has_value() && *bytes < least.bytes) {
      least = {*bytes, name};
    }
  };
  consider(machine_memory(), "");
  const std::int64_t program = program_bytes().value_or(0);
  const std::int64_t later_stacks = threads * stack_bytes();
  consider(plan_limit(
               {finite_limit(RLIMIT_AS), address_space_bytes().value_or(0), program, later_stacks}),
           "ulimit -v");
  consider(plan_limit({finite_limit(RLIMIT_DATA), data_bytes().value_or(0), program, later_stacks}),
           "ulimit -d");
  return least;
}

std::string limits_text(LimitKinds kinds) {
  std::string text;
  const auto add = [&text](const std::string& limit) {
    text += (text.empty() ? " (" : ", ") + limit;
  };
  if (const auto bytes = finite_limit(RLIMIT_AS); bytes.has_value()) {
    add("ulimit -v " + mebibytes_text(*bytes));
  }
  if (const auto bytes = finite_limit(RLIMIT_DATA); bytes.has_value()) {
    add("ulimit -d " + mebibytes_text(*bytes));
  }
  const std::string threads = thread_limit_text();
  if (kinds == LimitKinds::kMemoryAndThreads && !threads.empty()) {
    add(threads);
  }
  return text.empty() ? text : text + ")";
}

Status with_limits(const Status& status) {
  return status.code() == Errc::kResourceExhausted
             ? Status(status.code(), status.message() + limits_text(LimitKinds::kMemoryAndThreads))
             : status;
}

Result<std::unique_ptr<actors::WorkPort>> start_port(const std::string& name,
                                                     actors::PortPriority priority) {
  auto port = actors::make_thread_work_port(name, priority);
  if (!port.ok()) {
    return with_limits(port.status());
  }
  return port;
}

Status check_threads(int threads) {
  return with_limits(try_threads(threads));
}

void allow_files(std::int64_t files) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const rlim_t wanted = std::min(static_cast<rlim_t>(num_open_files() + files), limit.rlim_max);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Status check_files(std::int64_t files, const std::string& user) {
  const std::optional<std::int64_t> limit = finite_limit(RLIMIT_NOFILE);
  const std::int64_t open = num_open_files();
  if (!limit.has_value() || *limit - open >= files) {
    return {};
  }
  return {Errc::kResourceExhausted, user + " need " + std::to_string(files) + " open files, and " +
                                        std::to_string(std::max<std::int64_t>(*limit - open, 0)) +
                                        " are left (ulimit -n " + std::to_string(*limit) + ")"};
}

std::size_t connections_within_limits() {
  constexpr std::size_t kFiles = 256;  // of the model, of jobs and of checkpoints
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::size_t>::max();
  }
  const auto most = static_cast<std::size_t>(limit.rlim_cur);
  return most > 2 * kFiles ? most - kFiles : most / 2;
}

}  // namespace tidemill::workflows
