// SPDX-License-Identifier: Apache-2.0
// Spawns the prompt source.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/keeper/handles.hpp"
#include "actors/stream/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// PROMPT SOURCE: requests slots from the keeper and fills them with groups of the next prompts.
using PromptSourceActor = caf::typed_actor<
    // Starts the source.
    caf::reacts_to<atom::start>,
    // The read that the source submitted to its port is done.
    caf::reacts_to<atom::worked>>;

/// One prompt, as text and as token ids, and its row of data.
struct Prompt {
  std::uint64_t draw = 0;      // how many prompts the run had drawn before this one
  std::uint64_t epoch = 0;     // complete passes over the data before this draw
  std::uint64_t position = 0;  // of the draw within its pass
  std::vector<std::int32_t> ids;
  std::string prompt;  // the text
  std::string reference_answer;
  std::string fields;  // the data row as a JSON object
};

/// Reads prompts by draw.
///
/// Threads: one call at a time. Calls block, so actors make them through a `WorkPort`.
class PromptReader {
public:
  PromptReader() = default;
  PromptReader(const PromptReader&) = delete;
  PromptReader& operator=(const PromptReader&) = delete;
  virtual ~PromptReader() = default;

  /// Returns the next `count` prompts from draw `draw` on, or fewer if the data ends. Passes over
  /// draws that the options say to skip.
  /// Errors: naming file and line.
  [[nodiscard]] virtual Result<std::vector<Prompt>> read(std::uint64_t draw,
                                                         std::uint32_t count) = 0;
};

/// Dependencies of a prompt source.
struct PromptSourceDeps {
  std::uint32_t group_size = 1;
  std::uint32_t groups_at_once = 8;  // per request for slots
  std::uint64_t first_draw = 0;
  StreamProducerActor stream;
  KeeperActor keeper;
  std::shared_ptr<PromptReader> reader;
  WorkPort* port = nullptr;  // outlives the source
  Duration admission_wait = std::chrono::seconds(5);
  /// How long the stream may delay its reply to a `put` because it has reached its byte limit.
  Duration put_deadline = std::chrono::minutes(60);
};

/// Spawns a prompt source. If the data cannot be read, the source exits with the failure as its
/// exit reason.
[[nodiscard]] PromptSourceActor spawn_prompt_source(caf::actor_system& system,
                                                    PromptSourceDeps deps);

}  // namespace tidemill::actors
