// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/progress.hpp"

#include <cstdio>
#include <ostream>
#include <utility>

#include "storage/run_files/metrics_line.hpp"

namespace tidemill::launcher {
namespace {

constexpr Duration kMinInterval = std::chrono::milliseconds(250);

double metric(const actors::StepRecord& record, const char* name) {
  const auto it = record.metrics.find(name);
  return it == record.metrics.end() ? 0.0 : it->second;
}

// Formats into a fixed buffer, which is large enough for a row of the tables.
template <class... Values>
std::string row(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

// A rate below 100 has a decimal.
std::string rate_text(double count, double seconds) {
  const double rate = seconds > 0.0 ? count / seconds : 0.0;
  return row(rate > 0.0 && rate < 99.95 ? "%8.1f" : "%8.0f", rate);
}

}  // namespace

std::string duration_text(Duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration).count();
  if (seconds < 60) {
    return std::to_string(seconds) + "s";
  }
  if (seconds < 3600) {
    return row("%lldm%02llds", static_cast<long long>(seconds / 60),
               static_cast<long long>(seconds % 60));
  }
  return row("%lldh%02lldm", static_cast<long long>(seconds / 3600),
             static_cast<long long>(seconds / 60 % 60));
}

void Progress::begin(std::uint64_t total_steps) {
  total_steps_ = total_steps;
}

void Progress::show(const actors::StepRecord& record) {
  if (form_ == OutputForm::kJson) {
    show_json(record);
    return;
  }
  if (record.kind == "eval") {
    if (const auto loss = record.metrics.find("eval_loss"); loss != record.metrics.end()) {
      eval_loss_ = loss->second;
      unshown_eval_ = record.step;
      return;
    }
    const double asked = metric(record, "eval_prompts") * metric(record, "eval_samples");
    eval_reward_.reset();
    if (metric(record, "eval_failed") < asked) {
      eval_reward_ = metric(record, "eval_mean_at_k");
    }
    return;  // the next row shows it
  }
  const TimePoint now = clock_.now();
  if (!first_step_.has_value()) {
    first_step_ = record.step;
    first_shown_ = now;
  }
  if (has_head_ && now - shown_ < kMinInterval) {
    skipped_ = actors::StepRecord{record.kind, record.step, record.metrics, {}};
    return;
  }
  shown_ = now;
  skipped_.reset();
  show_row(record);
}

void Progress::end() {
  processes_ = nullptr;  // they have ended
  if (skipped_.has_value()) {
    show_row(*skipped_);
    skipped_.reset();
  }
  if (unshown_eval_.has_value()) {
    out_ << row("eval loss after step %llu: %.5f\n",
                static_cast<unsigned long long>(*unshown_eval_), *eval_loss_)
         << std::flush;
    unshown_eval_.reset();
  }
}

void Progress::show_json(const actors::StepRecord& record) {
  out_ << storage::write_metrics_line({record.kind, record.step, record.metrics}) << std::flush;
}

void Progress::show_processes() {
  std::string processes = processes_ ? processes_() : shown_processes_;
  if (processes != shown_processes_) {
    shown_processes_ = std::move(processes);
    out_ << "processes: " << shown_processes_ << '\n';
  }
}

void Progress::show_row(const actors::StepRecord& record) {
  show_processes();
  if (record.metrics.contains("reward_mean")) {
    show_rollouts(record);
  } else {
    show_supervised(record);
  }
}

std::string Progress::time_left(std::uint64_t step) const {
  if (step >= total_steps_ || step <= *first_step_) {
    return step >= total_steps_ && total_steps_ > 0 ? "0s" : "-";
  }
  const auto done = static_cast<std::int64_t>(step - *first_step_);
  const auto left = static_cast<std::int64_t>(total_steps_ - step);
  return duration_text((clock_.now() - first_shown_) / done * left);
}

void Progress::show_rollouts(const actors::StepRecord& record) {
  if (!has_head_) {
    out_ << "          mean reward       seconds per step\n"
            "  step    train     eval  waiting  training  tokens/s  staleness  time left\n";
    has_head_ = true;
  }
  const double seconds = metric(record, "wait_seconds") + metric(record, "train_seconds");
  const std::string held_out = eval_reward_.has_value() ? row("%7.3f", *eval_reward_) : "      -";
  out_ << row("%6llu  %7.3f  %s  %7.2f  %8.2f  %s  %9.2f  %9s\n",
              static_cast<unsigned long long>(record.step), metric(record, "reward_mean"),
              held_out.c_str(), metric(record, "wait_seconds"), metric(record, "train_seconds"),
              rate_text(metric(record, "response_tokens"), seconds).c_str(),
              metric(record, "staleness_mean"), time_left(record.step).c_str())
       << std::flush;
}

void Progress::show_supervised(const actors::StepRecord& record) {
  if (!has_head_) {
    out_ << "  step      loss  eval loss  gradient norm  learning rate  tokens/s  time left\n";
    has_head_ = true;
  }
  const double seconds = metric(record, "train_seconds");
  const std::string held_out = eval_loss_.has_value() ? row("%9.5f", *eval_loss_) : "        -";
  unshown_eval_.reset();
  out_ << row("%6llu  %8.5f  %s  %13.4f  %13.3g  %s  %9s\n",
              static_cast<unsigned long long>(record.step), metric(record, "loss"),
              held_out.c_str(), metric(record, "gradient_norm"), metric(record, "learning_rate"),
              rate_text(metric(record, "batch_tokens"), seconds).c_str(),
              time_left(record.step).c_str())
       << std::flush;
}

}  // namespace tidemill::launcher
