// SPDX-License-Identifier: Apache-2.0
// Chats with a model that this process opens.
#pragma once

#include <cstdint>
#include <memory>

#include "base/log.hpp"
#include "engines/rollout_engine.hpp"
#include "launcher/chat/chat_peer.hpp"
#include "launcher/models/model_arguments.hpp"

namespace tidemill::launcher {

/// How a model in this process generates.
struct LocalChatOptions {
  engines::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::int64_t max_new_tokens = 0;  // 0: the rest of the context
};

/// Opens a model for chats. Errors: those of the tokenizer, the chat template and
/// `ModelArguments::open`.
[[nodiscard]] Result<std::unique_ptr<ChatPeer>> open_local_chat(const ModelArguments& model,
                                                                const LocalChatOptions& options,
                                                                Log& log);

}  // namespace tidemill::launcher
