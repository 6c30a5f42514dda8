// SPDX-License-Identifier: Apache-2.0
// A reward engine that sends samples to a long-lived program provided by the user.
//
// States of the program: *running*; *down* until `next_start_`, after it exited, hung or could not
// be started; *given up*, after too many failures in a row without a reply. A sample is *queued*,
// then *in flight* once its line is in `outbox_` or in the pipe, then done.
//
// If the program exits or hangs, only the oldest sample in flight gets an error, because a program
// that takes its input in order was working on it. The others return to the front of the queue and
// are sent one at a time, so that the next failure is charged to the sample that caused it.
//
// A process that has not replied yet has `first_reply_timeout` for its first reply.
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

/// Scores samples by exchanging JSON lines with a program (command_protocol.hpp). Holds at most
/// 256 MiB of requests.
class CommandRewardEngine final : public RewardEngine {
public:
  /// Starts the program. `clock` must outlive the engine.
  /// Errors: those of `make_reward_engine`.
  [[nodiscard]] static Result<std::unique_ptr<CommandRewardEngine>> start(
      const RewardOptions& options, const Clock& clock);

  /// Errors: `kInvalidArgument` naming the sample if its row is not a JSON object of at most 64
  /// levels; `kResourceExhausted` if too many bytes are queued; `kUnavailable` once the engine has
  /// given up.
  [[nodiscard]] Status submit(RewardRequest request, RewardSink& sink) override;
  [[nodiscard]] bool has_work() const override;
  /// Errors: `kUnavailable` once the engine has given up, with the program's last line on stderr.
  [[nodiscard]] Status step(Duration patience) override;
  [[nodiscard]] RewardStats stats() const override { return stats_; }

private:
  struct Sample {
    SampleId id;
    RewardSink* sink;
    std::string line;  // kept while in flight: a restarted program may get it again
  };
  struct Done {
    RewardSink* sink;
    RewardResult result;
  };

  CommandRewardEngine(const RewardOptions& options, const Clock& clock, ProgramLog log);

  void pump();
  bool ensure_running();
  void send_queued();
  bool write_out();
  bool read_replies();
  void read_stderr();
  void handle_line(std::string_view line);
  void handle_reply(const CommandReply& reply);
  void finish(std::map<std::uint64_t, Sample>::iterator sample, double reward, std::string error);
  void check_time();
  void stop_program(const std::string& reason_unless_ended);
  void count_failure(const std::string& why);
  void give_up(const std::string& why);
  void deliver();
  [[nodiscard]] Duration time_limit() const;
  [[nodiscard]] Duration time_until_due() const;

  RewardOptions options_;
  const Clock& clock_;
  ProgramLog log_;
  RewardStats stats_;
  Status given_up_;

  std::unique_ptr<ChildProcess> child_;
  LineSplitter lines_;
  std::string outbox_;        // lines of samples in flight that are not yet in the pipe
  std::string last_garbage_;  // the last line of the running program that is not a reply
  bool replied_ = false;      // the running process has replied at least once
  std::size_t failures_in_a_row_ = 0;
  std::size_t isolate_next_ = 0;  // how many of the next samples are sent one at a time
  TimePoint next_start_{};

  std::uint64_t next_key_ = 1;
  std::map<std::uint64_t, Sample> queued_;     // by key, oldest first
  std::map<std::uint64_t, Sample> in_flight_;  // by key, oldest first
  TimePoint oldest_since_{};                   // when the first sample in flight became the first
  std::size_t held_bytes_ = 0;
  std::vector<Done> done_;
};

}  // namespace tidemill::engines
