// SPDX-License-Identifier: Apache-2.0
// The evaluator. It generates all responses first, and then scores all of them. While it generates,
// it has at most `EvaluatorDeps::max_in_flight` requests at the device, and each reply lets it send
// the next one. The device serves requests in the order of arrival, so rollouts that arrive during
// an evaluation overtake the requests that have not been sent. Work at the port decodes the
// responses, submits them to the reward engine and steps it.
//
// A stopped evaluator has no promise left: whatever arrives afterwards is ignored, and the reward
// engine keeps the samples that it has not scored.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/errors.hpp"
#include "actors/evaluator/scores.hpp"
#include "actors/evaluator/spawn.hpp"

namespace tidemill::actors {
namespace {

using engines::RewardRequest;
using engines::RewardResult;
using engines::RolloutRequest;
using engines::RolloutResult;

// The first sample id of an evaluation. Ids of the stream are smaller.
constexpr std::uint64_t kFirstEvalId = std::uint64_t{1} << 62U;
constexpr std::uint64_t kNoStep = ~std::uint64_t{0};
constexpr std::uint32_t kAttempts = 3;  // to have a response generated

// A response, and the request to score it, which lacks the response's text.
struct Response {
  RewardRequest request;
  std::vector<std::int32_t> ids;
};

// Shared with the work at the port.
struct PortWork : engines::RewardSink {
  void on_reward(RewardResult result) override { results.push_back(std::move(result)); }

  // Submits the responses and steps the engine once. Runs at the port, because decoding is not
  // free.
  void iterate(Duration patience) {
    for (Response& response : std::exchange(responses, {})) {
      response.request.response = decode(response.ids);
      const SampleId id = response.request.id;
      const Status submitted = engine->submit(std::move(response.request), *this);
      if (submitted.code() == Errc::kUnavailable) {
        status = submitted;
        return;
      }
      if (!submitted.ok()) {
        results.push_back({id, 0.0, submitted.message(), {}});
      }
    }
    if (engine->has_work()) {
      status = engine->step(patience);
    }
  }

  std::shared_ptr<engines::RewardEngine> engine;
  std::function<std::string(const std::vector<std::int32_t>&)> decode;
  std::vector<Response> responses;  // that are not submitted yet
  std::vector<RewardResult> results;
  Status status;
};

struct EvaluatorState {
  static inline const char* name = "evaluator";
  EvaluatorState() = default;  // not an aggregate: CAF would build it from `self`

  EvaluatorDeps deps;
  std::shared_ptr<PortWork> port_work;
  std::optional<caf::typed_response_promise<EvalReport>> promise;
  EvalReport report;
  std::uint64_t requested_step = 0;
  std::vector<double> rewards;             // ordered by prompt, then by sample
  std::vector<std::vector<double>> parts;  // of each reward; empty if there are none
  std::size_t num_requested = 0;
  std::size_t num_pending = 0;      // responses that have not arrived
  std::set<std::size_t> in_flight;  // indices of the responses that the device generates
  bool stopped = false;
};

using Self = EvaluatorActor::stateful_pointer<EvaluatorState>;

Status evaluation_stopped() {
  return {Errc::kUnavailable, "the evaluator was stopped"};
}

void report(Self self) {
  auto& state = self->state;
  const std::size_t samples = state.deps.samples;
  EvalReport& found = state.report;
  found.num_prompts = state.deps.prompts.size();
  found.num_samples = samples;
  if (found.step == kNoStep) {
    found.step = state.requested_step;
  }
  const EvalScores scores = eval_scores(state.rewards, samples);
  found.mean_at_k = scores.mean_at_k;
  found.pass_at_k = scores.pass_at_k;
  // Adds in the order of the prompts, because the order in which results arrive varies.
  for (const std::vector<double>& parts : state.parts) {
    found.part_means.resize(std::max(found.part_means.size(), parts.size()));
    for (std::size_t part = 0; part < parts.size(); ++part) {
      found.part_means[part] += parts[part];
    }
  }
  for (double& sum : found.part_means) {
    sum /= static_cast<double>(state.rewards.size());
  }
  state.promise->deliver(found);
  state.promise.reset();
}

void score(Self self) {
  auto& state = self->state;
  for (RewardResult& result : std::exchange(state.port_work->results, {})) {
    if (result.error.empty() && engines::is_reward(result.reward)) {
      const std::uint64_t index = result.id.value - kFirstEvalId;
      state.rewards[index] = result.reward;
      state.parts[index] = std::move(result.parts);
    } else {
      ++state.report.num_failed;
    }
  }
  if (state.port_work->responses.empty() && !state.port_work->engine->has_work()) {
    report(self);
    return;
  }
  state.deps.port->run(
      [port_work = state.port_work, patience = state.deps.patience] {
        port_work->iterate(patience);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void request_next(Self self);

void on_response(Self self, std::size_t index, const RolloutResult* result) {
  auto& state = self->state;
  if (!state.promise.has_value()) {
    return;  // stopped
  }
  state.in_flight.erase(index);
  if (result != nullptr && result->finish_reason != engines::FinishReason::kFailed &&
      result->finish_reason != engines::FinishReason::kCancelled) {
    const Prompt& prompt = state.deps.prompts[index / state.deps.samples];
    Response response;
    response.request.id = {kFirstEvalId + index};
    response.request.prompt = prompt.prompt;
    response.request.reference_answer = prompt.reference_answer;
    response.request.fields = prompt.fields;
    response.ids = result->response_ids;
    state.port_work->responses.push_back(std::move(response));
    for (const engines::VersionSpan& span : result->versions) {
      state.report.step = std::min(state.report.step, span.version.step);
    }
  } else {
    ++state.report.num_failed;
  }
  --state.num_pending;
  if (state.num_requested < state.rewards.size()) {
    request_next(self);
  } else if (state.num_pending == 0) {
    score(self);
  }
}

// Fails the running evaluation, if there is one, with `why`. No other evaluation follows.
void stop(Self self, const Status& why) {
  auto& state = self->state;
  state.stopped = true;
  if (!state.promise.has_value()) {
    return;
  }
  for (const std::size_t index : std::exchange(state.in_flight, {})) {
    self->send(state.deps.serving, atom::cancel_v, SampleId{kFirstEvalId + index});
  }
  state.promise->deliver(to_caf_error(why));
  state.promise.reset();
}

// A device that ends or is quarantined gives up its requests. Their responses are then requested
// again, because an evaluation without them would not measure the weights. If that does not help,
// the evaluation fails: there may be no device left.
void request_response(Self self, std::size_t index, std::uint32_t attempt) {
  auto& state = self->state;
  RolloutRequest request;
  request.id = {kFirstEvalId + index};
  request.prompt_ids = state.deps.prompts[index / state.deps.samples].ids;
  request.sampling = state.deps.sampling;
  request.seed = state.deps.seed;
  request.max_new_tokens = state.deps.max_new_tokens;
  request.stop_ids = state.deps.stop_ids;
  request.stop_strings = state.deps.stop_strings;
  request.min_step = state.requested_step;
  const auto handle = self->request(state.deps.serving, state.deps.response_deadline,
                                    atom::generate_v, std::move(request));
  handle.then(
      [self, index, id = handle.id()](const RolloutResult& result) {
        end_deadline(self, id);
        on_response(self, index, &result);
      },
      [self, index, attempt, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        if (!self->state.promise.has_value()) {
          return;  // stopped
        }
        const Status why = from_caf_error(error);
        if (why.code() == Errc::kUnavailable && attempt < kAttempts) {
          request_response(self, index, attempt + 1);
          return;
        }
        if (why.code() == Errc::kUnavailable) {
          stop(self, why);
          return;
        }
        self->send(self->state.deps.serving, atom::cancel_v, SampleId{kFirstEvalId + index});
        on_response(self, index, nullptr);
      });
}

// Requests the next response.
void request_next(Self self) {
  auto& state = self->state;
  const std::size_t index = state.num_requested++;
  state.in_flight.insert(index);
  request_response(self, index, 1);
}

void generate(Self self, std::uint64_t step) {
  auto& state = self->state;
  const std::size_t total = state.deps.prompts.size() * state.deps.samples;
  state.report = {};
  state.report.step = kNoStep;
  state.requested_step = step;
  state.rewards.assign(total, 0.0);
  state.parts.assign(total, {});
  state.num_pending = total;
  state.num_requested = 0;
  while (state.num_requested < std::min<std::size_t>(total, state.deps.max_in_flight)) {
    request_next(self);
  }
  if (total == 0) {
    report(self);
  }
}

EvaluatorActor::behavior_type evaluator(Self self, EvaluatorDeps deps) {
  self->state.port_work = std::make_shared<PortWork>();
  self->state.port_work->engine = deps.engine;
  self->state.port_work->decode = deps.decode;
  self->state.deps = std::move(deps);
  return {
      [self](atom::start, std::uint64_t step) -> caf::result<EvalReport> {
        if (self->state.stopped) {
          return to_caf_error(evaluation_stopped());
        }
        if (self->state.promise.has_value()) {
          return to_caf_error({Errc::kUnavailable, "an evaluation is running"});
        }
        auto promise = self->make_response_promise<EvalReport>();
        self->state.promise = promise;
        generate(self, step);
        return promise;
      },
      [self](atom::stop) { stop(self, evaluation_stopped()); },
      [self](atom::worked) {
        if (!self->state.promise.has_value()) {
          return;  // stopped
        }
        if (!self->state.port_work->status.ok()) {
          self->quit(to_caf_error(self->state.port_work->status));
          return;
        }
        score(self);
      },
  };
}

}  // namespace

EvaluatorActor spawn_evaluator(caf::actor_system& system, EvaluatorDeps deps) {
  return system.spawn(evaluator, std::move(deps));
}

}  // namespace tidemill::actors
