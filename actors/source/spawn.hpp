// SPDX-License-Identifier: Apache-2.0
// Starting the prompt source.
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

/// PROMPT SOURCE: asks the keeper for places and fills them with groups of the next prompts.
using PromptSourceActor = caf::typed_actor<
    // Begins.
    caf::reacts_to<atom::start>,
    // The prompts handed to the port have been read.
    caf::reacts_to<atom::worked>>;

/// One prompt, ready for a model.
struct Prompt {
  std::uint64_t draw = 0;      // draws since the run's start
  std::uint64_t epoch = 0;     // passes over the data before this one
  std::uint64_t position = 0;  // within the pass
  std::vector<std::int32_t> ids;
  std::string prompt;  // as text
  std::string answer;
  std::string fields;  // the data row as a JSON object
};

/// Reads prompts by their place in the run.
///
/// Threads: one call at a time. Calls block: they are made through a `WorkPort`.
class PromptReader {
public:
  PromptReader() = default;
  PromptReader(const PromptReader&) = delete;
  PromptReader& operator=(const PromptReader&) = delete;
  virtual ~PromptReader() = default;

  /// Returns the next prompts from draw `draw` on, at most `count`; fewer only when the data ends.
  /// Draws that the options say to skip are passed over.
  /// Errors: naming file and line.
  [[nodiscard]] virtual Result<std::vector<Prompt>> read(std::uint64_t draw,
                                                         std::uint32_t count) = 0;
};

/// What a prompt source is made of.
struct PromptSourceDeps {
  std::uint32_t group_size = 1;
  std::uint32_t groups_at_once = 8;
  std::uint64_t first_draw = 0;
  StreamProducerActor stream;
  KeeperActor keeper;
  std::shared_ptr<PromptReader> reader;
  WorkPort* port = nullptr;  // outlives the source
  Duration admission_wait = std::chrono::seconds(5);
  /// How long the stream may hold a group back for want of bytes.
  Duration put_deadline = std::chrono::minutes(60);
};

/// Spawns a prompt source. Unreadable data ends it, with the failure as its exit reason.
[[nodiscard]] PromptSourceActor spawn_prompt_source(caf::actor_system& system,
                                                    PromptSourceDeps deps);

}  // namespace tidemill::actors
