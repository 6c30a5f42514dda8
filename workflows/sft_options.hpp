// SPDX-License-Identifier: Apache-2.0
// The options of supervised fine-tuning. The help texts in sft_options.cpp explain the keys.
#pragma once

#include <cstdint>

#include "base/schema/schema.hpp"
#include "workflows/data_options.hpp"
#include "workflows/eval_options.hpp"
#include "workflows/run_options.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

/// How batches are formed and trained on.
struct SftTrainOptions {
  std::int32_t sequences_per_step = 32;
  TrainOptions common;
};

/// All options of an `sft` run.
struct SftOptions {
  ModelOptions model;
  DataOptions data;
  SftTrainOptions train;
  EvalOptions eval;
  RunOptions run;
};

void describe(Schema<SftTrainOptions>& s);
void describe(Schema<SftOptions>& s);

}  // namespace tidemill::workflows
