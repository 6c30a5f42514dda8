// SPDX-License-Identifier: Apache-2.0
// The constraints that requests ask for: `response_format`, and forced calls of tools.
#pragma once

#include <memory>
#include <string>

#include "base/json/json.hpp"
#include "base/result.hpp"
#include "engines/constraint/constraint_cache.hpp"

namespace tidemill::actors::openai {

/// A constraint, null if there is none. `refused` is the path of the member that was refused.
using ConstraintResult = Result<std::shared_ptr<const engines::Constraint>>;

/// Returns the constraint of `format`, a `response_format`, or null for text. `cache` is null if
/// the server has no constraints. Errors: `kInvalidArgument`, `kResourceExhausted` (a schema is too
/// large); messages begin with `refused`. Threads: safe to call concurrently. Compiling a schema
/// takes up to about a second.
[[nodiscard]] ConstraintResult format_constraint(const Json& format,
                                                 engines::ConstraintCache* cache,
                                                 std::string& refused);

/// Which calls of tools a response must consist of.
struct ForcedCalls {
  const Json* tools = nullptr;  // of the request; a list of functions with names
  std::string only;             // the name of the one to call; empty: any
  engines::ToolCallForm form = engines::ToolCallForm::kTags;
  engines::ToolCallCount count = engines::ToolCallCount::kOne;
};

/// Does the same for calls of tools. The result is not null.
[[nodiscard]] ConstraintResult call_constraint(const ForcedCalls& calls,
                                               engines::ConstraintCache* cache,
                                               std::string& refused);

}  // namespace tidemill::actors::openai
