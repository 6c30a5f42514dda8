// SPDX-License-Identifier: Apache-2.0
#include "base/text/process_end.hpp"

#include <cstring>
#include <sys/wait.h>

namespace tidemill {

std::string process_end_text(int wait_status) {
  if (WIFEXITED(wait_status)) {
    return "exit status " + std::to_string(WEXITSTATUS(wait_status));
  }
  const int number = WTERMSIG(wait_status);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the names of the known signals are constant
  return "killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
}

}  // namespace tidemill
