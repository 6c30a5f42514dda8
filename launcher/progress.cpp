// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress.hpp"

#include <cstdio>
#include <ostream>

#include "base/json.hpp"

namespace tidemill::launcher {
namespace {

constexpr Duration kShortestPause = std::chrono::milliseconds(250);

double figure(const actors::StepRecord& record, const char* name) {
  const auto it = record.figures.find(name);
  return it == record.figures.end() ? 0.0 : it->second;
}

// Formats into a fixed buffer: a table's row is short.
template <class... Values>
std::string row(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

}  // namespace

void Progress::show(const actors::StepRecord& record) {
  if (form_ == OutputForm::kJson) {
    Json::Object line{{"kind", record.kind}, {"step", static_cast<std::int64_t>(record.step)}};
    for (const auto& [name, value] : record.figures) {
      line.push_back({name, value});
    }
    out_ << Json(std::move(line)).to_line();
    return;
  }
  if (record.kind == "eval") {
    accuracy_ = figure(record, "eval_mean_at_k");
  }
  const TimePoint now = clock_.now();
  if (record.kind != "eval" && has_head_ && now - shown_ < kShortestPause) {
    return;
  }
  shown_ = now;
  if (record.figures.contains("reward_mean")) {
    show_rollouts(record);
  } else if (record.kind == "train") {
    show_supervised(record);
  }
}

void Progress::show_rollouts(const actors::StepRecord& record) {
  if (!has_head_) {
    out_ << "  step  reward  accuracy  staleness  tokens/s   wait s  train s  logprob gap\n";
    has_head_ = true;
  }
  const double seconds = figure(record, "wait_seconds") + figure(record, "train_seconds");
  const double rate = seconds > 0.0 ? figure(record, "response_tokens") / seconds : 0.0;
  const std::string accuracy = accuracy_ < 0.0 ? "       -" : row("%8.3f", accuracy_);
  out_ << row("%6llu  %6.3f  %s  %9.2f  %8.0f  %7.2f  %7.2f  %11.2g\n",
              static_cast<unsigned long long>(record.step), figure(record, "reward_mean"),
              accuracy.c_str(), figure(record, "staleness_max"), rate,
              figure(record, "wait_seconds"), figure(record, "train_seconds"),
              figure(record, "logprob_gap_max"))
       << std::flush;
}

void Progress::show_supervised(const actors::StepRecord& record) {
  if (!has_head_) {
    out_ << "  step      loss  gradient norm  learning rate  tokens/s\n";
    has_head_ = true;
  }
  const double seconds = figure(record, "train_seconds");
  const double rate = seconds > 0.0 ? figure(record, "batch_tokens") / seconds : 0.0;
  out_ << row("%6llu  %8.5f  %13.4f  %13.3g  %8.0f\n", static_cast<unsigned long long>(record.step),
              figure(record, "loss"), figure(record, "gradient_norm"),
              figure(record, "learning_rate"), rate)
       << std::flush;
}

}  // namespace tidemill::launcher
