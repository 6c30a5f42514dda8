// SPDX-License-Identifier: Apache-2.0
// Lowers a limit of this process for a while, for tests of what the system refuses.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include "base/check.hpp"
#include "base/files/unique_fd.hpp"

namespace tidemill::test {

/// Sets the soft limit of a resource until it is destroyed.
class SoftLimit {
public:
  SoftLimit(decltype(RLIMIT_NOFILE) resource, rlim_t limit) : resource_(resource) {
    TIDEMILL_CHECK(::getrlimit(resource, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = limit;
    TIDEMILL_CHECK(::setrlimit(resource, &now) == 0);
  }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;
  ~SoftLimit() { (void)::setrlimit(resource_, &before_); }

private:
  decltype(RLIMIT_NOFILE) resource_;
  rlimit before_{};
};

/// Returns the smallest descriptor that is not used.
[[nodiscard]] inline rlim_t next_descriptor() {
  const UniqueFd free(::dup(0));
  return static_cast<rlim_t>(free.get());
}

}  // namespace tidemill::test
