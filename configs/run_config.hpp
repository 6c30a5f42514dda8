// SPDX-License-Identifier: Apache-2.0
// The whole configuration of a run of any workflow.
#pragma once

#include "base/schema/schema.hpp"
#include "workflows/rl_options.hpp"
#include "workflows/serve_options.hpp"
#include "workflows/sft_options.hpp"

namespace tidemill::configs {

/// The workflow of a run, with its options.
///
///   if (const auto* rl = config.workflow.get<workflows::RlOptions>()) ...
///
/// A program that embeds Tidemill adds its own workflows, rewards or algorithms to the schema:
///
///   auto schema = Schema<RunConfig>::described();
///   schema.add_kind<MyReward>("reward", "my_reward", "...");
struct RunConfig {
  OneOf workflow;
};

void describe(Schema<RunConfig>& s);

}  // namespace tidemill::configs
