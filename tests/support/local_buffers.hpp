// SPDX-License-Identifier: Apache-2.0
// Both sides of an exchange of buffers, inside one process, for tests and simulation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "actors/remote/buffer_exchange.hpp"
#include "base/buffer.hpp"

namespace tidemill::test {

/// Lends buffers of this process, and resolves what was lent, once for each loan.
///
/// Threads: one call at a time.
class LocalBuffers final : public actors::BufferLender, public actors::BufferResolver {
public:
  Result<TensorMap> lend(const TensorMap& tensors) override {
    ++lends;
    if (!failures.empty()) {
      Status failure = std::move(failures.front());
      failures.pop_front();
      if (!failure.ok()) {
        return failure;
      }
    }
    for (const auto& [name, tensor] : tensors) {
      loans_.emplace(to_string(tensor.data.identity()), tensor.data);
    }
    return tensors;
  }
  void take_back(const TensorMap& lent) override {
    for (const auto& [name, tensor] : lent) {
      const auto loan = loans_.find(to_string(tensor.data.identity()));
      TIDEMILL_CHECK(loan != loans_.end()) << name;
      loans_.erase(loan);
    }
  }
  Status resolve(TensorMap& tensors) override {
    Status first;
    for (auto& [name, tensor] : tensors) {
      const auto loan = loans_.find(to_string(tensor.data.identity()));
      if (loan != loans_.end()) {
        tensor.data = loan->second;
        loans_.erase(loan);
        ++resolved;
      } else if (first.ok()) {
        first = Status(Errc::kNotFound, "tensor " + name + ": it was not lent");
      }
    }
    return first;
  }

  /// Returns how many loans were neither used nor taken back.
  [[nodiscard]] std::size_t loans() const { return loans_.size(); }

  std::deque<Status> failures;  // of the next calls of `lend`; success: that call succeeds
  int lends = 0;                // calls of `lend`
  int resolved = 0;             // tensors

private:
  std::multimap<std::string, Buffer> loans_;  // by the name of the buffer
};

}  // namespace tidemill::test
