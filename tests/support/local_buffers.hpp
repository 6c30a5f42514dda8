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
  Result<Buffer> lend(const Buffer& buffer) override {
    ++lends;
    if (!failures.empty()) {
      Status failure = std::move(failures.front());
      failures.pop_front();
      if (!failure.ok()) {
        return failure;
      }
    }
    loans_.emplace(to_string(buffer.identity()), buffer);
    return buffer;
  }
  void take_back(const Buffer& lent) override {
    const auto loan = loans_.find(to_string(lent.identity()));
    TIDEMILL_CHECK(loan != loans_.end()) << to_string(lent.identity());
    loans_.erase(loan);
  }
  Result<Buffer> resolve(const BufferIdentity& identity) override {
    const auto loan = loans_.find(to_string(identity));
    if (loan == loans_.end()) {
      return Status(Errc::kNotFound, "it was not lent");
    }
    Buffer bytes = std::move(loan->second);
    loans_.erase(loan);
    ++resolved;
    return bytes;
  }

  /// Returns how many loans were neither used nor taken back.
  [[nodiscard]] std::size_t loans() const { return loans_.size(); }

  std::deque<Status> failures;  // of the next calls of `lend`; success: that call succeeds
  int lends = 0;                // calls of `lend`
  int resolved = 0;             // buffers

private:
  std::multimap<std::string, Buffer> loans_;  // by the name of the buffer
};

}  // namespace tidemill::test
