// SPDX-License-Identifier: Apache-2.0
// A reward engine that asks a long-lived program of the user's.
//
// States of the program: *running*; *down* until `next_start_` (it died, hung or could not be
// started, and there was a pause to keep); *given up* (too many failures in a row without an
// answer). A sample is *queued*, then *in flight* from the moment its line is handed to the pipe,
// then done. All that are in flight when the program dies or hangs get an error, so that the stream
// delivers them again; as any one of them may have killed it, as many of the next samples go one at
// a time, and the guilty one cannot take its neighbours with it a second time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "engines/reward/child_process.hpp"
#include "engines/reward/line_splitter.hpp"
#include "engines/reward/program_log.hpp"
#include "engines/reward/reward_options.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

struct CommandReply;

/// Judges by JSON lines (command_protocol.hpp). Holds at most 256 MiB of requests.
class CommandRewardEngine final : public RewardEngine {
public:
  /// Starts the program. `clock` must outlive the engine.
  /// Errors: as `make_reward_engine`.
  [[nodiscard]] static Result<std::unique_ptr<CommandRewardEngine>> start(
      const RewardOptions& options, const Clock& clock);

  /// Errors: `kInvalidArgument` naming the sample when its row is no JSON object;
  /// `kResourceExhausted` when too many bytes are waiting; `kUnavailable` after giving up.
  [[nodiscard]] Status submit(RewardRequest request, RewardSink& sink) override;
  [[nodiscard]] bool has_work() const override;
  /// Errors: `kUnavailable` after giving up, with the program's last words.
  [[nodiscard]] Status step(Duration patience) override;
  [[nodiscard]] RewardStats stats() const override { return stats_; }

private:
  struct Sample {
    SampleId id;
    RewardSink* sink;
    std::string line;  // empty once in flight
  };
  struct Done {
    RewardSink* sink;
    RewardResult result;
  };

  CommandRewardEngine(const RewardOptions& options, const Clock& clock, ProgramLog log);

  void pump();
  bool ensure_running();
  void feed();
  bool write_out();
  bool read_answers();
  void read_stderr();
  void take_line(std::string_view line);
  void take_reply(const CommandReply& reply);
  void finish(std::map<std::uint64_t, Sample>::iterator sample, double reward, std::string error);
  void check_time();
  void lose_program(const std::string& unless_it_ended);
  void count_failure(const std::string& why);
  void give_up(const std::string& why);
  void deliver();
  [[nodiscard]] Duration time_until_due() const;

  RewardOptions options_;
  const Clock& clock_;
  ProgramLog log_;
  RewardStats stats_;
  Status given_up_;

  std::unique_ptr<ChildProcess> child_;
  LineSplitter lines_;
  std::string outbox_;        // lines handed over, not yet all in the pipe
  std::string last_garbage_;  // of the running program
  std::size_t failures_in_a_row_ = 0;
  std::size_t alone_ = 0;  // how many of the next samples go one at a time
  TimePoint next_start_{};

  std::uint64_t next_key_ = 1;
  std::map<std::uint64_t, Sample> queued_;  // by key, that is by age
  std::map<std::uint64_t, Sample> flying_;
  TimePoint oldest_since_{};  // since when the first of `flying_` has been the first
  std::size_t held_bytes_ = 0;
  std::vector<Done> done_;
};

}  // namespace tidemill::engines
