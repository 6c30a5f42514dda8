// SPDX-License-Identifier: Apache-2.0
#include "base/control_groups.hpp"

#include <fstream>
#include <sstream>
#include <string>

namespace tidemill {
namespace {

bool lists(const std::string& controllers, std::string_view controller) {
  std::istringstream words(controllers);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == controller) {
      return true;
    }
  }
  return false;
}

// Adds `group`, a path from /proc/self/cgroup, and its ancestors in the tree at `root`.
void add_with_ancestors(const std::filesystem::path& root, const std::filesystem::path& group,
                        int version, std::vector<ControlGroup>& groups) {
  std::filesystem::path inner = group.relative_path().lexically_normal();
  if (!inner.empty() && *inner.begin() == "..") {
    inner.clear();  // outside the tree that the process can see
  }
  for (; !inner.empty(); inner = inner.parent_path()) {
    groups.push_back({root / inner, version});
  }
  groups.push_back({root, version});
}

}  // namespace

std::vector<ControlGroup> control_groups(const ControlGroupFiles& files,
                                         std::string_view controller) {
  std::vector<ControlGroup> groups;
  std::ifstream own(files.own_groups);
  // Lines have the form "hierarchy:controllers:group". Version 2 is hierarchy 0 and names no
  // controllers.
  for (std::string line; std::getline(own, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      add_with_ancestors(files.root, group, 2, groups);
    } else if (lists(controllers, controller)) {
      add_with_ancestors(files.root / controllers, group, 1, groups);
      add_with_ancestors(files.root / controller, group, 1, groups);
    }
  }
  return groups;
}

}  // namespace tidemill
