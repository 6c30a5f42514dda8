// SPDX-License-Identifier: Apache-2.0
#include "launcher/models/ordered_rollouts.hpp"

#include <deque>
#include <optional>

namespace tidemill::launcher {
namespace {

using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;

// Removes the sample id from an engine's message, since the user identifies requests by their
// lines.
std::string without_id(const std::string& message, SampleId id) {
  const std::string name = " sample_id=" + std::to_string(id.value);
  return message.ends_with(name) ? message.substr(0, message.size() - name.size()) : message;
}

class OrderedRun final : public engines::RolloutSink {
public:
  OrderedRun(engines::RolloutEngine& engine, LineReader& lines, const RolloutWindow& window,
             const RolloutWork& work)
      : engine_(engine), lines_(lines), window_(window), work_(work) {}
  OrderedRun(const OrderedRun&) = delete;
  OrderedRun& operator=(const OrderedRun&) = delete;
  ~OrderedRun() override {
    // The engine must not keep a pointer to this sink.
    for (const Waiting& waiting : waiting_) {
      if (!waiting.result.has_value()) {
        engine_.cancel(waiting.id);
      }
    }
  }

  void on_rollout(RolloutResult result) override {
    for (Waiting& waiting : waiting_) {
      if (waiting.id == result.id) {
        waiting.result = std::move(result);
        return;
      }
    }
  }

  Status run() {
    while (true) {
      // An invalid line ends reading, but the lines before it are still finished.
      if (Status read = take_lines(); !read.ok()) {
        stopped_ = true;
        failure_ = std::move(read);
      }
      TIDEMILL_RETURN_IF_ERROR(deliver_results());
      if (waiting_.empty() && stopped_) {
        return failure_;
      }
      if (waiting_.empty()) {
        continue;
      }
      if (!engine_.has_work()) {
        return Status(Errc::kInternal,
                      waiting_.front().location + ": the engine returned no result");
      }
      TIDEMILL_ASSIGN_OR_RETURN([[maybe_unused]] const engines::StepReport report,
                                engine_.step(engines::StepBudget{}));
    }
  }

private:
  struct Waiting {
    SampleId id;
    std::string location;
    std::int64_t values = 0;
    std::optional<RolloutResult> result;
  };

  [[nodiscard]] std::int64_t values_of(const RolloutRequest& request) const {
    const auto prompt = static_cast<std::int64_t>(request.prompt_ids.size());
    return prompt + request.max_new_tokens +
           (request.prompt_logits ? prompt * window_.vocab_size : 0);
  }

  Status take_lines() {
    while (!stopped_ && waiting_.size() < window_.requests && values_ < window_.values &&
           (waiting_.empty() || lines_.ready())) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::optional<InputLine> line, lines_.next());
      if (!line.has_value()) {
        stopped_ = true;
        break;
      }
      TIDEMILL_ASSIGN_OR_RETURN(RolloutRequest request, work_.request(*line));
      request.id = SampleId{line->index};
      const SampleId id = request.id;
      const std::int64_t values = values_of(request);
      // Must precede `submit`, which may deliver the result immediately.
      waiting_.push_back({id, line->location, values, std::nullopt});
      if (const Status status = engine_.submit(std::move(request), *this); !status.ok()) {
        waiting_.pop_back();
        return Status(status.code(), line->location + ": " + without_id(status.message(), id));
      }
      values_ += values;
    }
    return {};
  }

  Status deliver_results() {
    while (!waiting_.empty() && waiting_.front().result.has_value()) {
      const Waiting& first = waiting_.front();
      const RolloutResult& result = *first.result;
      if (result.finish_reason == FinishReason::kFailed ||
          result.finish_reason == FinishReason::kCancelled) {
        const std::string why =
            result.error.empty() ? "was cancelled" : without_id(result.error, first.id);
        return Status(Errc::kUnavailable, first.location + ": " + why);
      }
      TIDEMILL_RETURN_IF_ERROR(work_.finish(first.id.value, result));
      values_ -= first.values;
      waiting_.pop_front();
    }
    return {};
  }

  engines::RolloutEngine& engine_;
  LineReader& lines_;
  const RolloutWindow& window_;
  const RolloutWork& work_;
  std::deque<Waiting> waiting_;  // in the order of the lines
  std::int64_t values_ = 0;
  bool stopped_ = false;
  Status failure_;
};

}  // namespace

Status run_in_order(engines::RolloutEngine& engine, LineReader& lines, const RolloutWindow& window,
                    const RolloutWork& work) {
  return OrderedRun(engine, lines, window, work).run();
}

}  // namespace tidemill::launcher
