// SPDX-License-Identifier: Apache-2.0
// When held-out data is looked at, and what is made of it. Meanings: eval_options.cpp.
#pragma once

#include <cstdint>

#include "base/schema.hpp"

namespace tidemill::workflows {

struct EvalOptions {
  std::int64_t every_steps = 0;
  bool keep_best = false;
  std::int32_t patience = 0;
  double min_improvement = 0.0;
};

void describe(Schema<EvalOptions>& s);

}  // namespace tidemill::workflows
