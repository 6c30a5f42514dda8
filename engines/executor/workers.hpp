// SPDX-License-Identifier: Apache-2.0
// The threads of one device: a fixed team that runs parallel loops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tidemill::engines {

/// A team of threads that includes the caller.
///
/// Threads: one `parallel_for` at a time. A loop body must not call it.
class Workers {
public:
  /// Starts `count` - 1 threads. Requires `count` >= 1. Throws `std::system_error` if a thread
  /// cannot be started.
  explicit Workers(int count);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers();

  [[nodiscard]] int size() const noexcept;

  /// Calls `body(begin, end)` on disjoint ranges that cover [0, n), at most one range per member,
  /// and returns when all calls are done. After its own range, the caller also runs those ranges
  /// that their members have not begun. The split is static, and every range begins at a multiple
  /// of `grain`. A loop of at most `grain` iterations runs on the caller alone and wakes no thread.
  /// Results must not depend on the split.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body);

private:
  struct Team;
  std::unique_ptr<Team> team_;
};

}  // namespace tidemill::engines
