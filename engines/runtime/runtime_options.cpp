// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/runtime_options.hpp"

#include <algorithm>

#include "engines/executor/cores.hpp"

namespace tidemill::engines {

int num_threads(int threads) {
  return threads == 0 ? std::min(usable_cores().cores, kMaxThreads) : threads;
}

std::string threads_warning(int threads) {
  return too_many_threads(threads, usable_cores());
}

DType cache_type(DType compute) noexcept {
  return compute == DType::kF32 ? DType::kF32 : DType::kBF16;
}

}  // namespace tidemill::engines
