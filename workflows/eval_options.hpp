// SPDX-License-Identifier: Apache-2.0
// The keys of section `eval` that all workflows share: when a run evaluates held-out data, and how
// it uses the result. The help texts in eval_options.cpp explain the keys.
#pragma once

#include <cstdint>

#include "base/schema/schema.hpp"

namespace tidemill::workflows {

/// When a run evaluates, and how it uses the result.
struct EvalOptions {
  std::int64_t every_steps = 0;
  bool keep_best = false;
  std::int32_t patience = 0;
  double min_improvement = 0.0;
};

void describe(Schema<EvalOptions>& s);

}  // namespace tidemill::workflows
