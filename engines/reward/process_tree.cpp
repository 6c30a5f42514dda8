// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/process_tree.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <fstream>
#include <optional>
#include <poll.h>
#include <set>
#include <sstream>
#include <string_view>
#include <unistd.h>

namespace tidemill::engines {
namespace {

constexpr auto kKillTime = std::chrono::milliseconds(500);
constexpr auto kOrphanKillTime = std::chrono::seconds(2);
constexpr std::string_view kMarkName = "TIDEMILL_REWARD_PROGRAM=";
constexpr std::size_t kMaxEnvironBytes = 1U << 20U;

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  bool marked = false;
};

// Returns the first megabyte of a file.
std::string read_start(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 4096> bytes;
  while (text.size() < kMaxEnvironBytes &&
         (file.read(bytes.data(), bytes.size()) || file.gcount() > 0)) {
    text.append(bytes.data(), static_cast<std::size_t>(file.gcount()));
  }
  return text;
}

// Returns the parent of a process that has not ended, from its `stat`: "PID (NAME) STATE PARENT
// ...". The name may contain anything.
std::optional<pid_t> live_parent(const std::string& stat) {
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream rest(stat.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  if (!(rest >> state >> parent) || state == 'Z' || state == 'X') {
    return std::nullopt;
  }
  return parent;
}

// Which part of an entry a mark is.
enum class MarkPart { kWhole, kStart };

// Returns whether `environment`, entries that end in a zero byte, has the entry `mark`, or one that
// starts with it.
bool has_entry(std::string_view environment, std::string_view mark, MarkPart part) {
  for (std::size_t at = environment.find(mark); at != std::string_view::npos;
       at = environment.find(mark, at + 1)) {
    const std::size_t end = at + mark.size();
    const bool starts = at == 0 || environment[at - 1] == '\0';
    if (starts &&
        (part == MarkPart::kStart || end == environment.size() || environment[end] == '\0')) {
      return true;
    }
  }
  return false;
}

std::vector<ProcessEntry> list_processes(const std::filesystem::path& proc, const std::string& mark,
                                         MarkPart part) {
  std::vector<ProcessEntry> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(proc, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    ProcessEntry entry;
    const auto [rest, failure] = std::from_chars(name.data(), name.data() + name.size(), entry.pid);
    if (failure != std::errc{} || rest != name.data() + name.size()) {
      continue;
    }
    const auto parent = live_parent(read_start(it->path() / "stat"));
    if (parent.has_value()) {
      entry.parent = *parent;
      entry.marked = has_entry(read_start(it->path() / "environ"), mark, part);
      found.push_back(entry);
    }
  }
  return found;
}

}  // namespace

std::string make_process_mark() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return std::string(kMarkName) + std::to_string(::getpid()) + "." + std::to_string(::gettid()) +
         "." + std::to_string(now);
}

std::vector<pid_t> find_process_tree(const std::filesystem::path& proc, pid_t root,
                                     const std::string& mark) {
  const std::vector<ProcessEntry> all = list_processes(proc, mark, MarkPart::kWhole);
  std::set<pid_t> tree{root};
  for (bool grown = true; grown;) {
    grown = false;
    for (const ProcessEntry& each : all) {
      if (each.marked || tree.contains(each.parent)) {
        grown = tree.insert(each.pid).second || grown;
      }
    }
  }
  tree.erase(root);
  return {tree.begin(), tree.end()};
}

void kill_process_tree(pid_t root, const std::string& mark, const std::filesystem::path& proc,
                       const Clock& clock) {
  const TimePoint deadline = clock.now() + kKillTime;
  std::vector<pid_t> others = find_process_tree(proc, root, mark);
  ::kill(-root, SIGKILL);
  // Again, even if there was none: a process may have left the group before it was killed. Reading
  // a large procfs takes longer than a millisecond, so the time is limited, not the rounds.
  do {
    for (const pid_t pid : others) {
      ::kill(pid, SIGKILL);
    }
    others = find_process_tree(proc, root, mark);
    if (others.empty()) {
      return;
    }
    ::poll(nullptr, 0, 1);
  } while (clock.now() < deadline);
}

void kill_marked_by(pid_t maker, const std::filesystem::path& proc, const Clock& clock) {
  const TimePoint deadline = clock.now() + kOrphanKillTime;
  const std::string start = std::string(kMarkName) + std::to_string(maker) + ".";
  // A process that is being started may be missing from one list.
  for (int empty = 0; empty < 2 && clock.now() < deadline;) {
    ++empty;
    for (const ProcessEntry& each : list_processes(proc, start, MarkPart::kStart)) {
      if (each.marked) {
        empty = 0;
        ::kill(each.pid, SIGKILL);
      }
    }
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace tidemill::engines
