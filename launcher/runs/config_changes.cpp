// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/config_changes.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "configs/load.hpp"

namespace tidemill::launcher {
namespace {

// The keys that may change when a run is resumed. They say how long the run is, when it evaluates
// and commits, what it records, how long it waits for a reward program, and what it may use of the
// machine. The steps that a commit holds do not depend on them, with one exception: see
// `change_problem`.
constexpr std::array<std::string_view, 10> kChangeableKeys = {
    "train.steps",          "data.epochs",    "eval.every_steps",    "checkpoint.every_steps",
    "record.samples_bytes", "device.threads", "device.memory_bytes", "train.micro_batch_tokens",
    "reward.timeout_ms",    "placement"};

using Paths = std::vector<std::string>;

// Appends the paths of the keys whose values differ. Keys in the elements of a list have the path
// of the list in front of them, such as reward.timeout_ms.
void add_differences(const ConfigNode& before, const ConfigNode& after, const std::string& path,
                     Paths& paths) {
  const bool lists =
      before.kind == ConfigNode::Kind::kList && after.kind == ConfigNode::Kind::kList;
  if (lists && before.items.size() == after.items.size()) {
    for (std::size_t i = 0; i < after.items.size(); ++i) {
      add_differences(before.items[i], after.items[i], path, paths);
    }
    return;
  }
  if (before.kind != ConfigNode::Kind::kMap || after.kind != ConfigNode::Kind::kMap) {
    if (to_flow_text(before) != to_flow_text(after)) {
      paths.push_back(path);
    }
    return;
  }
  const std::string prefix = path.empty() ? "" : path + '.';
  for (const ConfigEntry& entry : after.entries) {
    const ConfigEntry* same = before.find(entry.key);
    if (same == nullptr) {
      paths.push_back(prefix + entry.key);
    } else {
      add_differences(same->value, entry.value, prefix + entry.key, paths);
    }
  }
  for (const ConfigEntry& entry : before.entries) {
    if (after.find(entry.key) == nullptr) {
      paths.push_back(prefix + entry.key);
    }
  }
}

const ConfigNode* find_value(const ConfigNode& root, std::string_view section,
                             std::string_view key) {
  const ConfigEntry* outer = root.find(section);
  const ConfigEntry* inner = outer == nullptr ? nullptr : outer->value.find(key);
  return inner == nullptr ? nullptr : &inner->value;
}

std::string value_text(const ConfigNode& root, std::string_view section, std::string_view key) {
  const ConfigNode* value = find_value(root, section, key);
  return value == nullptr ? "" : value->text;
}

// Returns the location of the last override that sets the key at `path`, or a key around it, else
// an empty string.
std::string location_of(const std::string& path, const std::vector<configs::Override>& overrides) {
  for (auto given = overrides.rbegin(); given != overrides.rend(); ++given) {
    const std::string key = given->text.substr(0, given->text.find('='));
    if (path == key || path.starts_with(key + '.')) {
      return given->location;
    }
  }
  return "";
}

bool sets_length(const std::string& path) {
  return path == "train.steps" || path == "data.epochs";
}

// Returns whether the path is that of a changeable key, or of one inside it.
bool is_changeable(const std::string& path) {
  return std::ranges::any_of(kChangeableKeys, [&](std::string_view key) {
    return path == key || path.starts_with(std::string(key) + '.');
  });
}

std::string changeable_keys() {
  std::string keys;
  for (const std::string_view key : kChangeableKeys) {
    keys += (keys.empty() ? "" : ", ") + std::string(key);
  }
  return keys;
}

// Says why the keys at `paths` cannot change in a resumed run with the configuration `after`, or
// returns an empty string.
std::string change_problem(const Paths& paths, const ConfigNode& after,
                           const ResumedConfig& config) {
  std::string refused;
  for (const std::string& path : paths) {
    if (!is_changeable(path)) {
      const std::string given = location_of(path, config.overrides);
      refused += (refused.empty() ? (given.empty() ? config.file : given) + ": " : ", ") + path;
    }
  }
  if (!refused.empty()) {
    return refused +
           ": cannot change in a resumed run, because its commits depend on it; these keys can: " +
           changeable_keys();
  }
  const std::string schedule = value_text(after, "train", "schedule");
  const auto length = std::find_if(paths.begin(), paths.end(), sets_length);
  if (length != paths.end() && !schedule.empty() && schedule != "constant") {
    const std::string given = location_of(*length, config.overrides);
    return (given.empty() ? config.file : given) + ": " + *length +
           ": cannot change in a resumed run with train.schedule: " + schedule +
           ", because the learning rates of all steps depend on it";
  }
  return "";
}

}  // namespace

Result<std::string> check_config_changes(const Schema<configs::RunConfig>& schema,
                                         const ResumedConfig& config,
                                         const std::string& committed) {
  ConfigNode before = schema.print(config.before);
  if (!committed.empty()) {
    const auto read = configs::read_run_config(schema, committed, "the last commit");
    before = read.ok() ? schema.print(read.value().value) : std::move(before);
  }
  const ConfigNode after = schema.print(config.after);
  Paths paths;
  add_differences(before, after, "", paths);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  if (const std::string problem = change_problem(paths, after, config); !problem.empty()) {
    return invalid_argument(problem);
  }
  const bool fixed = value_text(after, "staleness", "schedule") == "fixed" &&
                     value_text(after, "staleness", "max") != "0";
  return fixed && std::any_of(paths.begin(), paths.end(), sets_length)
             ? std::string(
                   "the length of the run has changed: with staleness.schedule: fixed and a "
                   "staleness.max above 0, its weights differ from those of a run that had this "
                   "length from its start")
             : std::string();
}

}  // namespace tidemill::launcher
