// SPDX-License-Identifier: Apache-2.0
// Items that wait, taken in turns of their tenants.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace tidemill::actors {

/// A queue in which tenants take turns. An item costs a number of turns, and its tenant lets all of
/// them but the last pass before it. So tenants get equal costs, and an item that costs one turn
/// waits for at most one item of each other tenant, and for those of its own tenant before it.
///
/// Source: Shreedhar and Varghese 1996, "Efficient fair queuing using deficit round robin".
/// Threads: one call at a time.
template <class Item>
class TenantTurns {
public:
  /// Adds an item. Requires a cost of at least 1.
  void push(const std::string& tenant, Item item, std::size_t cost = 1) {
    waiting_[tenant].items.push_back({std::move(item), cost});
  }
  /// Removes and returns the oldest item of the tenant whose turn it is. Requires that the queue is
  /// not empty. Takes time in proportion to the turns that pass.
  [[nodiscard]] Item pop() {
    for (;;) {
      auto turn = waiting_.upper_bound(last_);
      if (turn == waiting_.end()) {
        turn = waiting_.begin();
      }
      last_ = turn->first;
      Tenant& tenant = turn->second;
      if (++tenant.turns < tenant.items.front().cost) {
        continue;
      }
      Item item = std::move(tenant.items.front().item);
      tenant.items.pop_front();
      tenant.turns = 0;
      if (tenant.items.empty()) {
        waiting_.erase(turn);
      }
      return item;
    }
  }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }

private:
  struct Entry {
    Item item;
    std::size_t cost = 1;
  };
  struct Tenant {
    std::deque<Entry> items;
    std::size_t turns = 0;  // that it has let pass before its first item
  };
  std::map<std::string, Tenant> waiting_;  // no tenant without items
  std::string last_;                       // the tenant that had the last turn
};

}  // namespace tidemill::actors
