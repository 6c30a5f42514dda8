// SPDX-License-Identifier: Apache-2.0
// The threads of one device: a fixed team that runs loops in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tidemill::engines {

/// A team of threads, the caller among them.
///
/// Threads: one `parallel_for` at a time; never called from inside a loop body.
class Workers {
public:
  /// Starts `count` - 1 threads. Requires `count` >= 1.
  explicit Workers(int count);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers();

  [[nodiscard]] int size() const noexcept;

  /// Calls `body(begin, end)` on disjoint ranges that cover [0, n), on all members, and returns
  /// when all are done. Ranges are cut statically: whole multiples of `grain`, so that a loop
  /// shorter than `grain` runs on the caller alone without waking anyone. The cut must not matter
  /// to results.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body);

private:
  struct Team;
  std::unique_ptr<Team> team_;
};

}  // namespace tidemill::engines
