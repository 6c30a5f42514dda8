// SPDX-License-Identifier: Apache-2.0
#include "tests/process/child_process_list.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace tidemill::test {
namespace {

// Of /proc/PID/stat.
struct ProcessStat {
  char state = 'X';  // as in proc(5); 'X' also if there is no such process
  pid_t parent = 0;
};

ProcessStat stat_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string line;
  std::getline(file, line);
  ProcessStat stat;
  const std::size_t name_end = line.rfind(')');  // a name may contain anything
  if (name_end != std::string::npos) {
    std::istringstream(line.substr(name_end + 1)) >> stat.state >> stat.parent;
  }
  return stat;
}

bool has_ended(const ProcessStat& stat) {
  return stat.state == 'X' || stat.state == 'Z';
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    const ProcessStat stat = stat_of(name);
    if (stat.parent == parent && !has_ended(stat)) {
      children.push_back(std::stoi(name));
    }
  }
  std::ranges::sort(children);
  return children;
}

bool is_alive(pid_t process) {
  return !has_ended(stat_of(std::to_string(process)));
}

}  // namespace tidemill::test
