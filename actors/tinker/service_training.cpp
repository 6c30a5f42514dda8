// SPDX-License-Identifier: Apache-2.0
// The models of Tinker's API and the requests that train them.
//
//   enqueue       puts a request into the queue of its model and responds with a future.
//   run_next      takes the request whose turn it is; `run` starts it at the device.
//   finish        completes the future, and the next request runs. `fail_turn` does so on failure.
#include <algorithm>
#include <utility>

#include "actors/gateway/tinker/results.hpp"
#include "actors/tinker/service.hpp"
#include "base/text/mebibytes.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::tinker {
namespace {

FailureCategory category_of(const Status& status) {
  switch (status.code()) {
    case Errc::kInvalidArgument:
    case Errc::kNotFound:
    case Errc::kUnimplemented: return FailureCategory::kUser;
    default: return FailureCategory::kServer;
  }
}

// Whether two adapters have the same shapes.
bool has_same_modules(LoraSettings a, const LoraSettings& b) {
  a.seed = b.seed;
  return a == b;
}

}  // namespace

void Service::respond_future(ExchangeId exchange, const std::string& request_id,
                             const std::string& model_id) {
  respond(exchange, Json::Object{{"request_id", request_id}, {"model_id", model_id}});
}

// -- models ---------------------------------------------------------------------------------------

void Service::add_model(ExchangeId exchange, const NewModel& request, RunInfo run,
                        const std::function<void(const std::string& model_id)>& open) {
  Session* session = find_session(exchange, request.session_id);
  if (session == nullptr) {
    return;
  }
  const std::string id = request.session_id + ":train:" + std::to_string(request.seq_id);
  const std::string future = future_id(id, 0);
  if (!require_same_digest(exchange, "model_seq_id", future, request.digest)) {
    return;
  }
  if (futures_.contains(future) || models_.contains(id)) {
    respond_future(exchange, future, id);  // the client has sent the request again
    return;
  }
  const std::size_t bytes = deps_.model_bytes ? deps_.model_bytes(run.lora) : 0;
  const std::string needs = "lora_config: a model of rank " + std::to_string(run.lora.rank) +
                            " takes " + mebibytes_text(static_cast<std::int64_t>(bytes));
  if (bytes > model_bytes_.max_share()) {
    fail(exchange, {400,
                    needs + ", and a single model may take at most " +
                        mebibytes_text(static_cast<std::int64_t>(model_bytes_.max_share())) +
                        "; choose a lower rank",
                    "lora_config"});
    return;
  }
  if (!make_room(session->tenant, 1, bytes, silent_sessions(session->tenant))) {
    const bool lacks_memory = open_models_.fits(session->tenant, 1);
    fail_without_room(exchange, session->tenant,
                      lacks_memory ? needs + ", and " + memory_text(session->tenant)
                                   : "too many models are open for this tenant or on the server",
                      lacks_memory ? "lora_config" : "");
    return;
  }
  open_models_.take(session->tenant, 1);
  model_bytes_.take(session->tenant, bytes);
  futures_.add(future, session->tenant, request.digest);
  session->models.insert(id);
  Model& model = models_[id];
  model.session_id = request.session_id;
  model.tenant = session->tenant;
  model.job = id + "#" + std::to_string(++last_job_);
  model.bytes = bytes;
  model.run = std::move(run);
  model.run.id = id;
  respond_future(exchange, future, id);
  open(id);
}

void Service::open_job(const std::string& model_id, std::optional<JobState> state,
                       const Json::Object& result) {
  Model& model = models_.at(model_id);
  model.opening = true;
  NewJob job{model.job, model.tenant, model.run.lora, model.run.lora.seed.value_or(deps_.random()),
             std::move(state)};
  deps_.backend->open(std::move(job), [this, model_id, name = model.job, tenant = model.tenant,
                                       bytes = model.bytes, result](const Status& status) {
    const auto found = models_.find(model_id);
    if (found == models_.end() || found->second.job != name) {
      deps_.backend->close(name);  // its session has ended meanwhile
      open_models_.give_back(tenant, 1);
      model_bytes_.give_back(tenant, bytes);
      return;
    }
    found->second.opening = false;
    if (!status.ok()) {
      futures_.complete(future_id(model_id, 0),
                        failed_future(status.message(), category_of(status)), deps_.now());
      end_model(model_id);
      return;
    }
    found->second.open = true;
    touch_run(found->second);
    futures_.complete(future_id(model_id, 0), {Json(result).to_line()}, deps_.now());
    run_next(model_id);
  });
}

void Service::on(ExchangeId exchange, CreateModel& call) {
  if (!require_base(exchange, call.base_model)) {
    return;
  }
  RunInfo run;
  run.base_model = call.base_model;
  run.lora = call.lora;
  run.user_metadata = std::move(call.user_metadata);
  add_model(exchange, {call.session_id, call.model_seq_id, call.digest}, std::move(run),
            [this](const std::string& id) {
              open_job(id, std::nullopt, {{"model_id", id}, {"type", "create_model"}});
            });
}

void Service::end_model(const std::string& id) {
  const auto found = models_.find(id);
  if (found == models_.end()) {
    return;
  }
  Model model = std::move(found->second);
  models_.erase(found);
  if (const auto session = sessions_.find(model.session_id); session != sessions_.end()) {
    session->second.models.erase(id);
  }
  if (model.open) {
    deps_.backend->close(model.job);
  }
  if (!model.opening) {
    open_models_.give_back(model.tenant, 1);
    model_bytes_.give_back(model.tenant, model.bytes);
  }
  // Futures of requests that have not ended fail. Those of an ended session are dropped anyway.
  std::vector<std::int64_t> numbers = {0, model.queue.next() - 1};
  for (const auto& [seq_id, waiting] : model.queue.clear()) {
    numbers.push_back(seq_id);
    drop_waiting(model, waiting);
  }
  for (const std::int64_t seq_id : numbers) {
    futures_.complete(future_id(id, seq_id),
                      failed_future("the model has been unloaded", FailureCategory::kUser),
                      deps_.now());
  }
}

void Service::on(ExchangeId exchange, const UnloadModel& call) {
  const auto found = models_.find(call.model_id);
  if (found == models_.end()) {
    fail(exchange, {404, "model_id: there is no model " + quote(call.model_id), "model_id"});
    return;
  }
  const std::string request = call.model_id + ":unload";
  if (!futures_.contains(request)) {
    futures_.add(request, found->second.tenant, "");
  }
  end_model(call.model_id);
  futures_.complete(
      request,
      {Json(Json::Object{{"model_id", call.model_id}, {"type", "unload_model"}}).to_line()},
      deps_.now());
  respond_future(exchange, request, call.model_id);
}

void Service::on(ExchangeId exchange, const GetInfo& call) {
  const auto found = models_.find(call.model_id);
  if (found == models_.end()) {
    fail(exchange, {404, "model_id: there is no model " + quote(call.model_id), "model_id"});
    return;
  }
  respond(exchange,
          Json::Object{{"type", "get_info"},
                       {"model_id", call.model_id},
                       {"model_data", Json::Object{{"model_name", deps_.base.name},
                                                   {"tokenizer_id", deps_.base.tokenizer}}},
                       {"is_lora", true},
                       {"lora_rank", static_cast<std::int64_t>(found->second.run.lora.rank)},
                       {"model_name", deps_.base.name}});
}

// -- the queue of a model -------------------------------------------------------------------------

void Service::enqueue(ExchangeId exchange, const QueueTurn& turn, Op op) {
  const auto found = models_.find(turn.model_id);
  if (found == models_.end()) {
    fail(exchange, {404, "model_id: there is no model " + quote(turn.model_id), "model_id"});
    return;
  }
  Model& model = found->second;
  const std::string request = future_id(turn.model_id, turn.seq_id);
  if (!require_same_digest(exchange, "seq_id", request, turn.digest)) {
    return;
  }
  if (model.queue.knows(turn.seq_id)) {
    respond_future(exchange, request, turn.model_id);  // the client has sent the request again
    return;
  }
  const bool is_next = turn.seq_id == model.queue.next();
  if (!is_next && model.queue.size() >= deps_.limits.max_waiting) {
    fail(exchange, {429, "too many requests of this model wait for earlier ones"});
    return;
  }
  const std::size_t bytes = is_next ? 0 : bytes_of(op);
  if (!waiting_bytes_.fits(model.tenant, bytes)) {
    fail(exchange, {429,
                    "too many requests wait for earlier ones of their model, for this tenant or on "
                    "the server"});
    return;
  }
  const std::size_t snapshot = snapshot_bytes_of(model, std::get_if<SaveWeights>(&op));
  if (snapshot > 0) {
    std::vector<Removable> removable = silent_sessions(model.tenant);
    for (Removable& one : idle_snapshots(model.session_id)) {
      removable.push_back(std::move(one));
    }
    if (!make_room(model.tenant, 0, snapshot, removable)) {
      fail_without_room(exchange, model.tenant,
                        "a snapshot of rank " + std::to_string(model.run.lora.rank) + " takes " +
                            mebibytes_text(static_cast<std::int64_t>(snapshot)) + ", and " +
                            memory_text(model.tenant),
                        "");
      return;
    }
  }
  waiting_bytes_.take(model.tenant, bytes);
  model_bytes_.take(model.tenant, snapshot);
  futures_.add(request, model.tenant, turn.digest);
  model.queue.add(turn.seq_id, {std::move(op), bytes}, deps_.now());
  respond_future(exchange, request, turn.model_id);
  run_next(turn.model_id);
}

std::size_t Service::bytes_of(const Op& op) {
  std::size_t bytes = 0;
  if (const auto* save = std::get_if<SaveWeights>(&op)) {
    for (const auto& [name, value] : save->user_metadata) {
      bytes += name.size() + value.size();
    }
  }
  const auto* call = std::get_if<ForwardCall>(&op);
  if (call == nullptr) {
    return bytes;
  }
  for (const engines::TrainSequence& one : call->sequences) {
    bytes += one.ids.size() * sizeof(one.ids[0]) + one.response_mask.size() +
             (one.advantages.size() + one.behavior_logprobs.size() + one.token_weights.size()) *
                 sizeof(float);
  }
  return bytes;
}

void Service::drop_waiting(const Model& model, const Waiting& waiting) {
  waiting_bytes_.give_back(model.tenant, waiting.bytes);
  model_bytes_.give_back(model.tenant,
                         snapshot_bytes_of(model, std::get_if<SaveWeights>(&waiting.op)));
}

void Service::run_next(const std::string& model_id) {
  const auto found = models_.find(model_id);
  if (found == models_.end() || !found->second.open) {
    return;
  }
  const std::int64_t seq_id = found->second.queue.next();
  std::optional<Waiting> waiting = found->second.queue.take(deps_.now());
  if (waiting) {
    waiting_bytes_.give_back(found->second.tenant, waiting->bytes);
    touch_run(found->second);
    std::visit([&](auto& one) { run(model_id, seq_id, one); }, waiting->op);
  }
}

void Service::finish(const std::string& model_id, std::int64_t seq_id, FutureResult result) {
  futures_.complete(future_id(model_id, seq_id), std::move(result), deps_.now());
  const auto found = models_.find(model_id);
  if (found != models_.end() && found->second.queue.running() &&
      found->second.queue.next() == seq_id + 1) {
    found->second.queue.end();
    run_next(model_id);
  }
}

void Service::finish(const std::string& model_id, std::int64_t seq_id, const Json::Object& result) {
  finish(model_id, seq_id, FutureResult{Json(result).to_line()});
}

void Service::fail_turn(const std::string& model_id, std::int64_t seq_id, const Status& status) {
  finish(model_id, seq_id, failed_future(status.message(), category_of(status)));
}

void Service::on(ExchangeId exchange, ForwardCall& call) {
  const QueueTurn turn = call.turn;
  enqueue(exchange, turn, std::move(call));
}

void Service::on(ExchangeId exchange, OptimStepCall& call) {
  const QueueTurn turn = call.turn;
  enqueue(exchange, turn, std::move(call));
}

void Service::on(ExchangeId exchange, SaveWeights& call) {
  const QueueTurn turn = call.turn;
  enqueue(exchange, turn, std::move(call));
}

void Service::run(const std::string& model_id, std::int64_t seq_id, const RefusedCall& call) {
  if (call.backward) {
    models_.at(model_id).failed_backward = seq_id;
  }
  finish(model_id, seq_id, failed_future(call.error.message, FailureCategory::kUser));
}

// -- passes and steps -----------------------------------------------------------------------------

void Service::run(const std::string& model_id, std::int64_t seq_id, ForwardCall& call) {
  Model& model = models_.at(model_id);
  const bool backward = !call.forward_only;
  ForwardWork work{model.job, backward, call.loss, std::move(call.sequences)};
  deps_.backend->forward(
      std::move(work), [this, model_id, seq_id, backward](Result<ForwardOutcome> outcome) {
        if (!outcome.ok()) {
          const auto found = models_.find(model_id);
          if (backward && found != models_.end()) {
            found->second.failed_backward = seq_id;
          }
          fail_turn(model_id, seq_id, outcome.status());
          return;
        }
        const auto encoded = std::make_shared<std::string>();
        deps_.run_encoding(
            [encoded, kept = std::make_shared<ForwardOutcome>(std::move(outcome).value())] {
              *encoded = forward_result(kept->logprobs, kept->loss);
            },
            [this, model_id, seq_id, encoded] {
              finish(model_id, seq_id, FutureResult{std::move(*encoded), true});
            });
      });
}

void Service::run(const std::string& model_id, std::int64_t seq_id, const OptimStepCall& call) {
  Model& model = models_.at(model_id);
  if (const auto failed = std::exchange(model.failed_backward, std::nullopt)) {
    const Status status =
        invalid_argument("forward_backward with seq_id " + std::to_string(*failed) +
                         " has failed, so the gradients are incomplete; they were dropped");
    deps_.backend->discard_gradients(
        model.job, [this, model_id, seq_id, status](const Status& discarded) {
          fail_turn(model_id, seq_id, discarded.ok() ? status : discarded);
        });
    return;
  }
  deps_.backend->step(
      model.job, call.step, [this, model_id, seq_id](Result<engines::UpdateReport> report) {
        if (!report.ok()) {
          fail_turn(model_id, seq_id, report.status());
          return;
        }
        const engines::UpdateReport& update = report.value();
        finish(model_id, seq_id,
               Json::Object{
                   {"metrics",
                    Json::Object{{"grad_norm", update.gradient_norm},
                                 {"learning_rate", update.learning_rate},
                                 {"optimizer_step", static_cast<double>(update.optimizer_step)}}}});
      });
}

// -- weights --------------------------------------------------------------------------------------

void Service::run(const std::string& model_id, std::int64_t seq_id, SaveWeights& call) {
  Model& model = models_.at(model_id);
  const bool with_optimizer = call.kind == CheckpointKind::kTraining;
  CheckpointInfo info;
  info.path = {model_id, call.kind, call.name.value_or("")};
  info.base_model = model.run.base_model;
  info.lora = model.run.lora;
  info.has_optimizer = with_optimizer;
  info.created = deps_.unix_time();
  info.user_metadata = std::move(call.user_metadata);
  if (call.ttl_seconds) {
    info.expires_at = info.created + *call.ttl_seconds;
  }
  if (call.name && !call.overwrite && find_checkpoint(info.path) != nullptr) {
    fail_turn(model_id, seq_id,
              invalid_argument("path: the checkpoint " + to_text(info.path) + " exists already"));
    return;
  }
  const NewSnapshot snapshot{model.session_id, model.tenant, call.sampling_seq_id.value_or(0),
                             info.lora, snapshot_bytes_of(model, &call)};
  deps_.backend->save(model.job, with_optimizer,
                      [this, model_id, seq_id, info, named = call.name.has_value(),
                       recipients = std::move(call.recipients), snapshot](Result<JobState> state) {
                        if (!state.ok()) {
                          model_bytes_.give_back(snapshot.tenant, snapshot.bytes);
                          fail_turn(model_id, seq_id, state.status());
                          return;
                        }
                        if (!named) {
                          const Result<std::string> sampler =
                              add_snapshot_sampler(snapshot, std::move(state.value().weights));
                          if (!sampler.ok()) {
                            fail_turn(model_id, seq_id, sampler.status());
                            return;
                          }
                          finish(model_id, seq_id,
                                 Json::Object{{"type", "save_weights_for_sampler"},
                                              {"sampling_session_id", sampler.value()}});
                          return;
                        }
                        store_checkpoint(
                            snapshot.tenant, info, std::move(state).value(), recipients,
                            [this, model_id, seq_id, path = info.path](const Status& status) {
                              if (!status.ok()) {
                                fail_turn(model_id, seq_id, status);
                                return;
                              }
                              finish(model_id, seq_id, Json::Object{{"path", to_text(path)}});
                            });
                      });
}

void Service::on(ExchangeId exchange, LoadWeights& call) {
  if (!call.base_model.empty() && !require_base(exchange, call.base_model)) {
    return;
  }
  if (call.turn) {
    const QueueTurn turn = *call.turn;
    enqueue(exchange, turn, std::move(call));
    return;
  }
  const CheckpointInfo* info = find_checkpoint(exchange, call.path);
  if (info == nullptr) {
    return;
  }
  if (call.with_optimizer && !info->has_optimizer) {
    fail(exchange, {400, "path: the checkpoint has no optimizer state", "path"});
    return;
  }
  RunInfo run;
  run.base_model = info->base_model;
  run.lora = info->lora;
  run.user_metadata = std::move(call.user_metadata);
  add_model(exchange, {call.session_id, call.model_seq_id, call.digest}, std::move(run),
            [this, path = call.path, with_optimizer = call.with_optimizer](const std::string& id) {
              read_checkpoint(
                  models_.at(id).tenant, path, with_optimizer,
                  [this, id, path](Result<JobState> state) {
                    if (!models_.contains(id)) {
                      return;
                    }
                    if (!state.ok()) {
                      futures_.complete(
                          future_id(id, 0),
                          failed_future(state.status().message(), category_of(state.status())),
                          deps_.now());
                      end_model(id);
                      return;
                    }
                    open_job(id, std::move(state).value(),
                             {{"path", to_text(path)}, {"model_id", id}, {"type", "load_weights"}});
                  });
            });
}

void Service::run(const std::string& model_id, std::int64_t seq_id, const LoadWeights& call) {
  const Model& model = models_.at(model_id);
  const CheckpointInfo* info = find_checkpoint(call.path);
  Status status;
  if (const auto damaged = damaged_.find(to_text(call.path));
      info == nullptr && damaged != damaged_.end()) {
    status = Status(Errc::kCorruptData, "path: the checkpoint is damaged: " + damaged->second);
  } else if (info == nullptr) {
    status = Status(Errc::kNotFound, "path: there is no checkpoint " + to_text(call.path));
  } else if (call.with_optimizer && !info->has_optimizer) {
    status = invalid_argument("path: the checkpoint has no optimizer state");
  } else if (!has_same_modules(info->lora, model.run.lora)) {
    status = invalid_argument("path: the checkpoint's rank or modules are not those of the model");
  }
  if (!status.ok()) {
    fail_turn(model_id, seq_id, status);
    return;
  }
  read_checkpoint(model.tenant, call.path, call.with_optimizer,
                  [this, model_id, seq_id, path = call.path](Result<JobState> state) {
                    const auto found = models_.find(model_id);
                    if (found == models_.end()) {
                      return;
                    }
                    if (!state.ok()) {
                      fail_turn(model_id, seq_id, state.status());
                      return;
                    }
                    deps_.backend->load(found->second.job, std::move(state).value(),
                                        [this, model_id, seq_id, path](const Status& loaded) {
                                          if (!loaded.ok()) {
                                            fail_turn(model_id, seq_id, loaded);
                                            return;
                                          }
                                          finish(model_id, seq_id,
                                                 Json::Object{{"path", to_text(path)},
                                                              {"model_id", model_id},
                                                              {"type", "load_weights"}});
                                        });
                  });
}

}  // namespace tidemill::actors::tinker
