// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/guarded/factory.hpp"

#include <utility>

#include "engines/ops/guarded/guarded_memory.hpp"

namespace tidemill::engines {

Result<std::unique_ptr<Ops>> make_guarded_ops(std::unique_ptr<host::Ops> ops,
                                              host::Execution execution, std::int64_t limit_bytes) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<host::GuardedMemory> memory,
                            host::GuardedMemory::create(limit_bytes));
  return host::make_backend(std::move(ops), std::move(memory), execution);
}

}  // namespace tidemill::engines
