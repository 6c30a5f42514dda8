// SPDX-License-Identifier: Apache-2.0
// What the options of reinforcement learning ask of a model.
#include "workflows/rl/rl_settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::workflows {
namespace {

using ::testing::HasSubstr;

engines::ModelConfig config_of(std::int64_t max_positions) {
  engines::ModelConfig config;
  config.max_positions = max_positions;
  return config;
}

TEST(RlSettings, PromptsGetWhatAnswersLeave) {
  RlOptions options;
  options.rollout.max_new_tokens = 24;
  EXPECT_EQ(max_prompt_tokens(options, config_of(64)), 40);
  options.data.max_prompt_tokens = 16;
  EXPECT_EQ(max_prompt_tokens(options, config_of(64)), 16);
  options.data.max_prompt_tokens = 60;
  EXPECT_EQ(max_prompt_tokens(options, config_of(64)), 40);
}

TEST(RlSettings, AnAnswerMustLeaveRoomForAPrompt) {
  RlOptions options;
  options.rollout.max_new_tokens = 63;
  EXPECT_TRUE(check_fit(options, config_of(64)).ok());
  options.rollout.max_new_tokens = 64;
  EXPECT_THAT(check_fit(options, config_of(64)).message(),
              HasSubstr("rollout.max_new_tokens: 64 leaves no room"));
}

TEST(RlSettings, TheStreamMustHoldAGroup) {
  RlOptions options;
  options.rollout.max_new_tokens = 4;
  const auto group = static_cast<std::int64_t>(stream_options(options, config_of(64)).group_bytes);
  options.stream.bytes = group;
  EXPECT_TRUE(check_fit(options, config_of(64)).ok());
  options.stream.bytes = group - 1;
  EXPECT_THAT(check_fit(options, config_of(64)).message(), HasSubstr("stream.bytes: "));
}

}  // namespace
}  // namespace tidemill::workflows
