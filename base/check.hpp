// SPDX-License-Identifier: Apache-2.0
// Checks for programmer errors: they print and abort, in release builds too.
#pragma once

#include <sstream>

namespace tidemill::detail {

/// Collects the streamed values of a failed check; its destructor prints them and aborts.
class CheckFailure {
public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

private:
  std::ostringstream stream_;
};

/// Turns the streamed expression into `void`, so that both arms of the macro's `?:` agree.
struct CheckVoidify {
  void operator&(const std::ostream& /*stream*/) const {}
};

}  // namespace tidemill::detail

/// Aborts with file, line, condition and the streamed values unless `condition` holds. Use it only
/// for programming errors: no input may trigger one.
// NOLINTNEXTLINE(bugprone-macro-parentheses): parentheses would cut off the stream.
#define TIDEMILL_CHECK(condition)                    \
  (condition) ? static_cast<void>(0)                 \
              : ::tidemill::detail::CheckVoidify() & \
                    ::tidemill::detail::CheckFailure(__FILE__, __LINE__, #condition).stream()

/// `TIDEMILL_CHECK` on hot paths: compiled out when `NDEBUG` is defined.
#ifdef NDEBUG
#define TIDEMILL_DCHECK(condition) TIDEMILL_CHECK(true || (condition))
#else
#define TIDEMILL_DCHECK(condition) TIDEMILL_CHECK(condition)
#endif
