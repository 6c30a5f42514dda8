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
// Reads of one pump; a program that never stops writing cannot hold up the caller.
constexpr int kReadsPerPump = 16;
constexpr std::size_t kReadBytes = 64U << 10U;
constexpr Duration kMaxBackoff = std::chrono::seconds(30);

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
    return {Errc::kResourceExhausted, "more than 256 MiB of samples wait for the reward program"};
  }
  held_bytes_ += line.value().size();
  queued_.emplace(next_key_++, Sample{request.id, &sink, std::move(line).value()});
  return {};
}

bool CommandRewardEngine::has_work() const {
  return !queued_.empty() || !flying_.empty() || !done_.empty();
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

// One round: everything that can be done without waiting.
void CommandRewardEngine::pump() {
  if (!given_up_.ok() || !has_work() || !ensure_running()) {
    return;
  }
  feed();
  // Asked before its output is read: what it wrote before its end must not be missed.
  const bool ended = child_->ended();
  const bool takes_input = write_out();
  const bool gives_output = read_answers();
  read_stderr();
  if (ended) {
    ++stats_.ends;
    lose_program({});
  } else if (!gives_output) {
    ++stats_.ends;
    lose_program("closed its standard output");
  } else if (!takes_input) {
    ++stats_.ends;
    lose_program("closed its standard input");
  } else {
    check_time();
  }
}

// Returns whether a program runs. One that died idle is replaced here: no sample is to blame.
bool CommandRewardEngine::ensure_running() {
  if (child_ && flying_.empty() && child_->ended()) {
    read_answers();
    read_stderr();
    ++stats_.ends;
    lose_program({});
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
  last_garbage_.clear();
  log_.start_over();
  return true;
}

void CommandRewardEngine::feed() {
  const std::size_t window = alone_ > 0 ? 1 : options_.max_in_flight;
  while (!queued_.empty() && flying_.size() < window) {
    if (flying_.empty()) {
      oldest_since_ = clock_.now();
    }
    auto node = queued_.extract(queued_.begin());
    std::string& line = node.mapped().line;
    outbox_ += line;
    held_bytes_ -= line.size();
    line = {};
    flying_.insert(std::move(node));
  }
}

// Returns false when the program does not read any more.
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

// Returns false when the program cannot answer any more.
bool CommandRewardEngine::read_answers() {
  std::array<char, kReadBytes> bytes;
  for (int reads = 0; reads < kReadsPerPump; ++reads) {
    const PipeResult result = child_->read_stdout(bytes);
    if (result.state != PipeState::kMoved) {
      return result.state != PipeState::kClosed;
    }
    lines_.feed(
        std::string_view(bytes.data(), result.bytes),
        [this](std::string_view line) { take_line(line); },
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

void CommandRewardEngine::take_line(std::string_view line) {
  const CommandReply reply = parse_reply(line);
  if (reply.kind == CommandReply::Kind::kGarbage) {
    ++stats_.garbage_lines;
    last_garbage_ = reply.text;
    return;
  }
  take_reply(reply);
}

void CommandRewardEngine::take_reply(const CommandReply& reply) {
  const auto sample = flying_.find(reply.id);
  if (sample == flying_.end()) {
    ++stats_.unknown_ids;
    return;
  }
  switch (reply.kind) {
    case CommandReply::Kind::kReward: finish(sample, reply.reward, {}); break;
    case CommandReply::Kind::kError:
      finish(sample, 0.0, "the reward program cannot judge it: " + reply.text);
      break;
    default:
      ++stats_.bad_answers;
      finish(sample, 0.0, "the reward program's answer is refused, " + reply.text);
      break;
  }
  failures_in_a_row_ = 0;
  alone_ -= alone_ > 0 ? 1 : 0;
}

void CommandRewardEngine::finish(std::map<std::uint64_t, Sample>::iterator sample, double reward,
                                 std::string error) {
  if (!error.empty()) {
    error = "sample " + std::to_string(sample->second.id.value) + ": " + error;
  }
  done_.push_back({sample->second.sink, {sample->second.id, reward, std::move(error), {}}});
  if (sample == flying_.begin()) {
    oldest_since_ = clock_.now();  // the next one's time begins
  }
  held_bytes_ -= sample->second.line.size();
  flying_.erase(sample);
}

void CommandRewardEngine::check_time() {
  if (flying_.empty() || clock_.now() - oldest_since_ < options_.timeout) {
    return;
  }
  ++stats_.hangs;
  const std::string guilty = std::to_string(flying_.begin()->second.id.value);
  lose_program("gave no answer to sample " + guilty + " within " + seconds_text(options_.timeout) +
               " and was killed");
}

// Takes leave of a program that died or must die; all samples in flight fail. A program that shuts
// its pipes because it is ending counts as ended; `unless_it_ended` says what else was the matter.
void CommandRewardEngine::lose_program(const std::string& unless_it_ended) {
  const ProgramEnd end = child_->stop();
  child_.reset();
  std::string reason = "the reward program ";
  if (end.on_its_own || unless_it_ended.empty()) {
    reason += "ended (" + end.how + ")";
  } else {
    reason += unless_it_ended;
  }
  if (const std::string words = log_.last_line(); !words.empty()) {
    reason += "; its last line on stderr: " + words;
  }
  if (!last_garbage_.empty()) {
    reason += "; its last line on stdout that was no answer: " + last_garbage_;
  }
  outbox_.clear();
  if (flying_.size() > 1) {
    alone_ = std::max(alone_, flying_.size());
  } else if (flying_.size() == 1) {
    alone_ -= alone_ > 0 ? 1 : 0;
  }
  while (!flying_.empty()) {
    finish(flying_.begin(), 0.0, reason);
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
                                     " failures in a row without an answer: " + why);
  flying_.merge(queued_);
  while (!flying_.empty()) {
    finish(flying_.begin(), 0.0, given_up_.message());
  }
}

void CommandRewardEngine::deliver() {
  // A sink may submit, which does not touch `done_`; it is emptied first all the same, so that a
  // result is delivered once whatever a sink does.
  for (Done& each : std::exchange(done_, {})) {
    each.sink->on_reward(std::move(each.result));
  }
}

Duration CommandRewardEngine::time_until_due() const {
  const TimePoint due = child_ ? oldest_since_ + options_.timeout : next_start_;
  return std::max(due - clock_.now(), Duration::zero());
}

}  // namespace tidemill::engines
