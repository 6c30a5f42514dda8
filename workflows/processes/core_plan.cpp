// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/core_plan.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>

#include "engines/executor/cores.hpp"

namespace tidemill::workflows {
namespace {

// Takes the next `count` cores.
CoreList take(const CoreList& cores, std::size_t& next, std::size_t count) {
  const auto first = cores.begin() + static_cast<std::ptrdiff_t>(next);
  next += count;
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

// Reads a number from the beginning of `text`, and removes it.
bool take_number(std::string_view& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= CPU_SETSIZE) {
    return false;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

CorePlan divide_cores(const CoreList& cores, int rollout_processes, int reward_processes) {
  const auto rollouts = static_cast<std::size_t>(rollout_processes);
  auto rewards = static_cast<std::size_t>(reward_processes);
  CorePlan plan;
  plan.rollout.resize(rollouts);
  plan.reward.resize(rewards);
  if (cores.size() < 1 + rollouts) {
    return plan;
  }
  const bool own_cores = cores.size() >= 1 + rollouts + rewards;
  rewards = own_cores ? rewards : 0;
  const std::size_t part = (cores.size() - rewards) / (1 + rollouts);
  std::size_t next = 0;
  plan.owner = take(cores, next, cores.size() - rewards - rollouts * part);
  for (CoreList& of : plan.rollout) {
    of = take(cores, next, part);
  }
  for (CoreList& of : plan.reward) {
    of = own_cores ? take(cores, next, 1) : plan.owner;
  }
  return plan;
}

std::string to_text(const CoreList& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + std::to_string(cores[i]);
    text += last > i ? "-" + std::to_string(cores[last]) : "";
    i = last;
  }
  return text;
}

std::string to_text(const CorePlan& plan) {
  std::string text = "process of the run: " + to_text(plan.owner);
  const auto add = [&text](const std::vector<CoreList>& processes, const std::string& role) {
    for (std::size_t i = 0; i < processes.size(); ++i) {
      text += "; " + role + " process " + std::to_string(i) + ": " + to_text(processes[i]);
    }
  };
  add(plan.rollout, "rollout");
  add(plan.reward, "reward");
  return text;
}

Result<CoreList> parse_cores(const std::string& text) {
  CoreList cores;
  std::string_view rest = text;
  while (!rest.empty()) {
    int first = 0;
    if (!take_number(rest, first)) {
      return invalid_argument(text + ": no list of cores");
    }
    int last = first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      if (!take_number(rest, last) || last < first) {
        return invalid_argument(text + ": no list of cores");
      }
    }
    for (int core = first; core <= last; ++core) {
      cores.push_back(core);
    }
    if (rest.empty()) {
      break;
    }
    if (!rest.starts_with(',') || rest.size() == 1) {
      return invalid_argument(text + ": no list of cores");
    }
    rest.remove_prefix(1);
  }
  return cores;
}

CoreList usable_core_list() {
  CoreList cores;
  cpu_set_t mask{};
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) {
    return cores;
  }
  const auto usable = static_cast<std::size_t>(engines::usable_cores().cores);
  for (int core = 0; core < CPU_SETSIZE && cores.size() < usable; ++core) {
    if (CPU_ISSET(core, &mask)) {
      cores.push_back(core);
    }
  }
  return cores;
}

Status use_cores(const CoreList& cores) {
  cpu_set_t mask{};
  for (const int core : cores) {
    CPU_SET(core, &mask);
  }
  if (::sched_setaffinity(0, sizeof mask, &mask) != 0) {
    return {Errc::kUnavailable,
            "cores " + to_text(cores) + ": " + std::generic_category().message(errno)};
  }
  return {};
}

CoreScope::CoreScope(const CoreList& cores) {
  changed_ = !cores.empty() && ::sched_getaffinity(0, sizeof before_, &before_) == 0 &&
             use_cores(cores).ok();
}

CoreScope::~CoreScope() {
  if (changed_) {
    ::sched_setaffinity(0, sizeof before_, &before_);
  }
}

}  // namespace tidemill::workflows
