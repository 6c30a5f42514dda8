// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. Items that wait, taken in turns of their tenants.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>

namespace tidemill::actors {

/// A queue in which tenants take turns: an item waits for at most one item of each other tenant,
/// and for those of its own tenant before it.
///
/// Threads: one call at a time.
template <class Item>
class TenantTurns {
public:
  void push(const std::string& tenant, Item item) { waiting_[tenant].push_back(std::move(item)); }
  /// Removes and returns the oldest item of the tenant whose turn it is. Requires that the queue is
  /// not empty.
  [[nodiscard]] Item pop() {
    auto turn = waiting_.upper_bound(last_);
    if (turn == waiting_.end()) {
      turn = waiting_.begin();
    }
    last_ = turn->first;
    Item item = std::move(turn->second.front());
    turn->second.pop_front();
    if (turn->second.empty()) {
      waiting_.erase(turn);
    }
    return item;
  }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }

private:
  std::map<std::string, std::deque<Item>> waiting_;  // by tenant; none is empty
  std::string last_;                                 // the tenant that had the last turn
};

}  // namespace tidemill::actors
