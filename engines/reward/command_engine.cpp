// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/command_engine.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <thread>
#include <utility>

#include "engines/reward/command_protocol.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxLineBytes = 1U << 20U;
constexpr std::size_t kMaxHeldBytes = 256U << 20U;
// Bounds the reads of one pump, so that a program that never stops writing cannot block the caller.
constexpr int kReadsPerPump = 16;
constexpr std::size_t kReadBytes = 64U << 10U;
constexpr Duration kMaxBackoff = std::chrono::seconds(30);

// How a program has ended that has returned 0, in the words of `ProgramEnd::how`.
constexpr std::string_view kSuccess = "exit status 0";

std::string seconds_text(Duration time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

Status check_options(const RewardOptions& options) {
  if (options.command.empty() || options.command.front().empty()) {
    return invalid_argument("command: is missing");
  }
  if (options.timeout <= Duration::zero()) {
    return invalid_argument("timeout: must be above 0");
  }
  if (options.max_in_flight == 0) {
    return invalid_argument("max_in_flight: must be above 0");
  }
  if (options.max_failures_in_a_row == 0) {
    return invalid_argument("max_failures_in_a_row: must be above 0");
  }
  if (options.first_backoff < Duration::zero()) {
    return invalid_argument("first_backoff: must not be negative");
  }
  return {};
}

}  // namespace

CommandRewardEngine::CommandRewardEngine(const RewardOptions& options, const Clock& clock,
                                         ProgramLog log)
    : options_(options), clock_(clock), log_(std::move(log)), lines_(kMaxLineBytes) {}

Result<std::unique_ptr<CommandRewardEngine>> CommandRewardEngine::start(
    const RewardOptions& options, const Clock& clock) {
  TIDEMILL_RETURN_IF_ERROR(check_options(options));
  TIDEMILL_ASSIGN_OR_RETURN(ProgramLog log, ProgramLog::open(options.stderr_path));
  std::unique_ptr<CommandRewardEngine> engine(
      new CommandRewardEngine(options, clock, std::move(log)));
  auto child = ChildProcess::start(options.command);
  if (!child.ok()) {
    return child.status().with_context("command");
  }
  engine->child_ = std::move(child).value();
  engine->stats_.starts = 1;
  return engine;
}

Status CommandRewardEngine::submit(RewardRequest request, RewardSink& sink) {
  TIDEMILL_RETURN_IF_ERROR(given_up_);
  auto line = encode_request(next_key_, request);
  if (!line.ok()) {
    return line.status().with_context("sample " + std::to_string(request.id.value));
  }
  if (line.value().size() > kMaxHeldBytes - held_bytes_) {
    return {Errc::kResourceExhausted, "more than 256 MiB are queued for the reward program"};
  }
  held_bytes_ += line.value().size();
  queued_.emplace(next_key_++, Sample{request.id, &sink, std::move(line).value()});
  return {};
}

bool CommandRewardEngine::has_work() const {
  return !queued_.empty() || !in_flight_.empty() || !done_.empty();
}

Status CommandRewardEngine::step(Duration patience) {
  pump();
  if (done_.empty() && has_work() && given_up_.ok()) {
    const Duration pause = std::min(patience, time_until_due());
    if (child_) {
      child_->wait(!outbox_.empty(), pause);
    } else {
      std::this_thread::sleep_for(pause);
    }
    pump();
  }
  deliver();
  return given_up_;
}

// Does everything that is possible without waiting, once.
void CommandRewardEngine::pump() {
  if (!given_up_.ok() || !has_work() || !ensure_running()) {
    return;
  }
  send_queued();
  // Checked before the output is read, so that no output written before the exit is missed.
  const bool ended = child_->ended();
  const bool stdin_open = write_out();
  const bool stdout_open = read_replies();
  read_stderr();
  if (ended) {
    ++stats_.ends;
    stop_program({});
  } else if (!stdout_open) {
    ++stats_.ends;
    stop_program("closed its standard output");
  } else if (!stdin_open) {
    ++stats_.ends;
    stop_program("closed its standard input");
  } else {
    check_time();
  }
}

// Returns whether the program is running, after starting it if a start is due. An exit while no
// sample is in flight is handled here, so that no sample fails because of it.
bool CommandRewardEngine::ensure_running() {
  if (child_ && in_flight_.empty() && child_->ended()) {
    read_replies();
    read_stderr();
    ++stats_.ends;
    stop_program({});
  }
  if (child_) {
    return true;
  }
  if (!given_up_.ok() || clock_.now() < next_start_) {
    return false;
  }
  auto child = ChildProcess::start(options_.command);
  if (!child.ok()) {
    count_failure(child.status().message());
    return false;
  }
  ++stats_.starts;
  child_ = std::move(child).value();
  lines_ = LineSplitter(kMaxLineBytes);
  replied_ = false;
  last_garbage_.clear();
  log_.clear_tail();
  return true;
}

void CommandRewardEngine::send_queued() {
  const std::size_t window = isolate_next_ > 0 ? 1 : options_.max_in_flight;
  while (!queued_.empty() && in_flight_.size() < window) {
    if (in_flight_.empty()) {
      oldest_since_ = clock_.now();
    }
    auto node = queued_.extract(queued_.begin());
    outbox_ += node.mapped().line;
    in_flight_.insert(std::move(node));
  }
}

// Returns false once the program has closed its input.
bool CommandRewardEngine::write_out() {
  std::size_t written = 0;
  PipeResult result{PipeState::kMoved, 0};
  while (written < outbox_.size() && result.state == PipeState::kMoved) {
    result = child_->write_stdin(std::string_view{outbox_}.substr(written));
    written += result.bytes;
  }
  outbox_.erase(0, written);
  return result.state != PipeState::kClosed;
}

// Returns false once the program has closed its output.
bool CommandRewardEngine::read_replies() {
  std::array<char, kReadBytes> bytes;
  for (int reads = 0; reads < kReadsPerPump; ++reads) {
    const PipeResult result = child_->read_stdout(bytes);
    if (result.state != PipeState::kMoved) {
      return result.state != PipeState::kClosed;
    }
    lines_.feed(
        std::string_view(bytes.data(), result.bytes),
        [this](std::string_view line) { handle_line(line); },
        [this] {
          ++stats_.garbage_lines;
          last_garbage_ = "a line of more than 1 MiB";
        });
  }
  return true;
}

void CommandRewardEngine::read_stderr() {
  std::array<char, kReadBytes> bytes;
  for (int reads = 0; reads < kReadsPerPump; ++reads) {
    const PipeResult result = child_->read_stderr(bytes);
    if (result.state != PipeState::kMoved) {
      return;
    }
    log_.append(std::string_view(bytes.data(), result.bytes));
  }
}

void CommandRewardEngine::handle_line(std::string_view line) {
  const CommandReply reply = parse_reply(line);
  if (reply.kind == CommandReply::Kind::kGarbage) {
    ++stats_.garbage_lines;
    last_garbage_ = reply.text;
    return;
  }
  handle_reply(reply);
}

void CommandRewardEngine::handle_reply(const CommandReply& reply) {
  if (!replied_) {
    replied_ = true;
    oldest_since_ = clock_.now();  // the time limits of samples exclude the start of the program
  }
  const auto sample = in_flight_.find(reply.id);
  if (sample == in_flight_.end()) {
    ++stats_.unknown_ids;
    return;
  }
  switch (reply.kind) {
    case CommandReply::Kind::kReward: finish(sample, reply.reward, {}); break;
    case CommandReply::Kind::kError:
      finish(sample, 0.0, "the reward program cannot score it: " + reply.text);
      break;
    default:
      ++stats_.bad_replies;
      finish(sample, 0.0, "the reward program's reply is invalid: " + reply.text);
      break;
  }
  failures_in_a_row_ = 0;
  isolate_next_ -= isolate_next_ > 0 ? 1 : 0;
}

void CommandRewardEngine::finish(std::map<std::uint64_t, Sample>::iterator sample, double reward,
                                 std::string error) {
  if (!error.empty()) {
    error = "sample " + std::to_string(sample->second.id.value) + ": " + error;
  }
  done_.push_back({sample->second.sink, {sample->second.id, reward, std::move(error), {}}});
  if (sample == in_flight_.begin()) {
    oldest_since_ = clock_.now();  // the time limit of the next sample starts now
  }
  held_bytes_ -= sample->second.line.size();
  in_flight_.erase(sample);
}

void CommandRewardEngine::check_time() {
  if (in_flight_.empty() || clock_.now() - oldest_since_ < time_limit()) {
    return;
  }
  ++stats_.hangs;
  const std::string overdue = std::to_string(in_flight_.begin()->second.id.value);
  stop_program("gave no reply to sample " + overdue + " within " + seconds_text(time_limit()) +
               " and was killed" +
               (replied_ ? ""
                         : "; it has never replied since it was started, and a larger timeout_ms "
                           "gives it more time to start"));
}

// Stops a program that has exited or must be killed, fails the oldest sample in flight, and queues
// the others again. The reported reason is `reason_unless_ended`, unless that is empty or the
// program ended on its own. A program that closes its pipes because it is exiting counts as ended
// on its own.
void CommandRewardEngine::stop_program(const std::string& reason_unless_ended) {
  const ProgramEnd end = child_->stop();
  child_.reset();
  std::string reason = "the reward program ";
  if (end.on_its_own || reason_unless_ended.empty()) {
    reason += "ended (" + end.how + ")";
    reason += end.how == kSuccess && !replied_
                  ? " before it replied to any request; it must run until its standard input ends, "
                    "and write one line for each line that it reads"
                  : "";
  } else {
    reason += reason_unless_ended;
  }
  if (const std::string words = log_.last_line(); !words.empty()) {
    reason += "; its last line on stderr: " + words;
  }
  if (!last_garbage_.empty()) {
    reason += "; its last line on stdout that is not a reply: " + last_garbage_;
  }
  outbox_.clear();
  if (!in_flight_.empty()) {
    finish(in_flight_.begin(), 0.0, reason);
    isolate_next_ -= isolate_next_ > 0 ? 1 : 0;
    isolate_next_ = std::max(isolate_next_, in_flight_.size());
    queued_.merge(in_flight_);  // in front, since their keys are the smallest
  }
  count_failure(reason);
}

void CommandRewardEngine::count_failure(const std::string& why) {
  ++failures_in_a_row_;
  if (failures_in_a_row_ >= options_.max_failures_in_a_row) {
    give_up(why);
    return;
  }
  Duration pause = options_.first_backoff;
  for (std::size_t doubled = 1; doubled < failures_in_a_row_ && pause < kMaxBackoff; ++doubled) {
    pause *= 2;
  }
  next_start_ = clock_.now() + std::min(pause, kMaxBackoff);
}

void CommandRewardEngine::give_up(const std::string& why) {
  given_up_ =
      Status(Errc::kUnavailable, "command: given up after " + std::to_string(failures_in_a_row_) +
                                     " failures in a row without a reply: " + why);
  in_flight_.merge(queued_);
  while (!in_flight_.empty()) {
    finish(in_flight_.begin(), 0.0, given_up_.message());
  }
}

void CommandRewardEngine::deliver() {
  // `done_` is emptied before the sinks are called, so that every result is delivered once whatever
  // a sink does. A sink may call `submit`, which does not touch `done_`.
  for (Done& each : std::exchange(done_, {})) {
    each.sink->on_reward(std::move(each.result));
  }
}

Duration CommandRewardEngine::time_limit() const {
  return replied_ ? options_.timeout : first_reply_timeout(options_.timeout);
}

Duration CommandRewardEngine::time_until_due() const {
  const TimePoint due = child_ ? oldest_since_ + time_limit() : next_start_;
  return std::max(due - clock_.now(), Duration::zero());
}

}  // namespace tidemill::engines
